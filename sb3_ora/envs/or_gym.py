"""The environments of or-gym 0.5 that have discrete actions, beside the knapsacks, for Gymnasium."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_ora.checks import LARGEST_SEED, check_choice, check_integer, check_no_rendering
from sb3_ora.envs.or_gym_import import RandomSource, classic_problems


class Problem(NamedTuple):
    """An environment of or-gym, and how its masks and rewards have to be read."""

    module: str
    class_name: str
    valid: Callable[[np.ndarray], np.ndarray] = lambda mask: mask > 0
    reward: Callable[[float], float] = float


PROBLEMS = {
    # The mask holds how many bins there are, also more than 1
    "BinPacking-v0": Problem("binpacking", "BinPackingEnv"),
    "BinPacking-v1": Problem("binpacking", "BinPackingLW1"),
    "BinPacking-v2": Problem("binpacking", "BinPackingPP0"),
    "BinPacking-v3": Problem("binpacking", "BinPackingPP1"),
    "BinPacking-v4": Problem("binpacking", "BinPackingBW0"),
    "BinPacking-v5": Problem("binpacking", "BinPackingBW1"),
    # -1 stands for nodes that are connected and visited, where the salesman may go again
    "TSP-v0": Problem("tsp", "TSPEnv", valid=lambda mask: mask != 0),
    # The mask holds 1 for visited nodes; distances are paid as positive rewards, the penalty as a negative one
    "TSP-v1": Problem("tsp", "TSPDistCost", valid=lambda mask: mask == 0, reward=lambda reward: -abs(reward)),
    "VehicleRouting-v0": Problem("vehicle_routing", "VehicleRoutingEnv"),
    "VMPacking-v0": Problem("vmpacking", "VMPackingEnv"),
}
_CONTINUOUS = "its actions are continuous, and the algorithms here take discrete ones"
UNSUPPORTED = {
    "InvManagement-v0": _CONTINUOUS,
    "InvManagement-v1": _CONTINUOUS,
    "NetworkManagement-v0": _CONTINUOUS,
    "NetworkManagement-v1": _CONTINUOUS,
    "Newsvendor-v0": _CONTINUOUS,
    "PortfolioOpt-v0": _CONTINUOUS,
    "VMPacking-v1": "it is broken in or-gym 0.5, where reset returns a tuple that step cannot read",
}


class OrGymEnv(gym.Env):
    """
    One environment of or-gym with discrete actions. Its random numbers are its own: the global ones of numpy and the
    standard library neither change it nor are changed. An end is always ``terminated``, also at a limit of steps,
    which or-gym does not tell from others. Source: or-gym 0.5 (https://arxiv.org/abs/2008.06319), to be installed with
    ``pip install --no-deps or-gym``.

    :param name: id in or-gym, such as "BinPacking-v0"
    :param obs_mode: "dict" for entries ``state`` and ``action_mask``, (A,); "flat" for the flattened state alone
    :param instance_seed: seed of what or-gym draws only once, when the environment is made: the nodes of TSP-v1
    :param render_mode: has no effect, as there is nothing to see; rl-zoo3's enjoy gives one
    :param config: settings of or-gym, its ``env_config``
    :raises ValueError: for an environment that is not supported, or an unknown setting
    :raises DependencyNotInstalled: if or-gym is missing
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012, as Gymnasium declares it
    action_space: spaces.Discrete

    def __init__(
        self, name: str, obs_mode: str = "dict", instance_seed: int = 0, render_mode: str | None = None, **config: Any
    ):
        check_no_rendering(f"or_gym/{name}", render_mode)
        if isinstance(name, str) and name in UNSUPPORTED:
            raise ValueError(f"or_gym/{name} is not supported: {UNSUPPORTED[name]}")
        self.name = check_choice("name", name, PROBLEMS)
        self.obs_mode = check_choice("obs_mode", obs_mode, ("dict", "flat"))
        if "mask" in config:
            raise ValueError(f"mask={config['mask']!r} is set by obs_mode: 'dict' has a mask, 'flat' has none")
        self._problem = PROBLEMS[name]
        self._source = RandomSource(check_integer("instance_seed", instance_seed, 0, LARGEST_SEED))
        self._fresh = True
        with self._source.in_use():
            self.problem = self._make(config)
        self._vehicle_capacity = getattr(self.problem, "vehicle_capacity", None)
        n_actions = int(self.problem.action_space.n)
        self.action_space = spaces.Discrete(n_actions)
        self._state_space = self._make_state_space()
        self.observation_space: spaces.Space = self._state_space
        if obs_mode == "dict":
            mask_space = spaces.Box(0, 1, (n_actions,), np.int8)
            self.observation_space = spaces.Dict({"action_mask": mask_space, "state": self._state_space})

    def _make(self, config: dict[str, Any]) -> Any:
        make = getattr(classic_problems()[self._problem.module], self._problem.class_name)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*float16")  # VehicleRouting's own space, not used here
                return make(env_config={"mask": True, **config})
        except AttributeError as error:
            if " has no attribute, " not in str(error):
                raise
            setting = str(error).rpartition(", ")[2]
            raise ValueError(f"or_gym/{self.name} has no setting {setting}={config[setting]!r}") from error

    def _make_state_space(self) -> spaces.Box:
        declared = self.problem.observation_space["state"]
        dtype: Any = np.int32 if np.issubdtype(declared.dtype, np.integer) else np.float32
        low, high = declared.low.astype(dtype), declared.high.astype(dtype)
        if self.obs_mode == "flat":
            low, high = low.ravel(), high.ravel()
        return spaces.Box(low, high, dtype=dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """
        Start an episode.

        :param seed: seed of the environment's random numbers
        :param options: not used
        :return: the first observation and an empty dict
        """
        super().reset(seed=seed)
        if seed is not None or self._fresh:
            self._source.seed(int(self.np_random.integers(2**32)))
            self._fresh = False
        if self._vehicle_capacity is not None:  # or-gym lowers it for every order missed, for good
            self.problem.vehicle_capacity = self._vehicle_capacity
        with self._source.in_use():
            raw = self.problem.reset()
        return self._observation(raw), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """
        :param action: an action of the problem
        :return: observation, reward, whether the episode ends, False, and an empty dict
        :raises ValueError: for an action outside the action space
        """
        if not self.action_space.contains(action):
            raise ValueError(f"action must be an integer in [0, {self.action_space.n - 1}], got {action!r}")
        with self._source.in_use():
            raw, reward, done, _ = self.problem.step(int(action))
        return self._observation(raw), self._problem.reward(float(reward)), bool(done), False, {}

    def action_masks(self) -> np.ndarray:
        """
        :return: which actions are valid now, as sb3-contrib's MaskablePPO asks for them, bool (A,)
        """
        return self._valid.copy()

    def _observation(self, raw: dict[str, np.ndarray]) -> Any:
        self._valid = self._problem.valid(np.asarray(raw["action_mask"]))
        state = np.array(raw["state"], dtype=self._state_space.dtype).reshape(self._state_space.shape)
        return state if self.obs_mode == "flat" else {"action_mask": self._valid.astype(np.int8), "state": state}
