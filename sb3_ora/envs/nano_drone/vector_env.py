"""N Nano Drones as a Gymnasium vector environment."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector.utils import batch_space

from sb3_ora.checks import check_integer
from sb3_ora.envs.nano_drone.config import COLLISION, OUTCOMES, REACHED, TIMEOUT, NanoDroneConfig
from sb3_ora.envs.nano_drone.core import NanoDroneCore
from sb3_ora.envs.nano_drone.layouts import check_options

_NAMES = np.array([*OUTCOMES, None], dtype=object)
# From Gymnasium 1.1 on, environments say when they begin the next episode; before, this was the only way
_NEXT_STEP = {} if not hasattr(gym.vector, "AutoresetMode") else {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}


class NanoDroneVectorEnv(gym.vector.VectorEnv):
    """
    N drones that are moved together. Drone i does, to the last bit, what a :class:`NanoDroneEnv` does that is seeded with
    ``seed + i``, or with ``seed[i]``. An episode that has ended is followed by the first of the next in the next step,
    whose action does not count (``AutoresetMode.NEXT_STEP``).

    The arguments are those of :class:`NanoDroneEnv`; it is not drawn.

    :param num_envs: number of drones N
    :raises ValueError: if an argument is out of range
    """

    metadata = {**_NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1,
        n_obstacles: int = 6,
        mode: str = "first",
        max_steps: int = 200,
        ranger_noise: float = 0.01,
        safe_start: bool = False,
        normalize: bool = False,
        obs_mode: str = "position",
        render_mode: str | None = None,
    ):
        config = NanoDroneConfig(n_obstacles, mode, max_steps, ranger_noise, safe_start, normalize, obs_mode)
        if render_mode is not None:
            raise ValueError(f"render_mode must be None with many drones, got {render_mode!r}")
        self.num_envs = check_integer("num_envs", num_envs)
        self.core = NanoDroneCore(self.num_envs, config)
        self.single_observation_space, self.single_action_space = config.observation_space, config.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.render_mode = None
        self._randomness = [seeding.np_random() for _ in range(self.num_envs)]  # each drone's generator and its seed
        self._ended = np.zeros(self.num_envs, dtype=bool)

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # as of Gymnasium's SyncVectorEnv
        """The drones' generators, N."""
        return tuple(generator for generator, _ in self._randomness)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The drones' seeds, N."""
        return tuple(seed for _, seed in self._randomness)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """
        :param seed: of drone 0, the others have the numbers after it; or one for each drone; None goes on
        :param options: as of :meth:`NanoDroneEnv.reset`, the same for all; ``reset_mask``, bool (N,): which ones to reset
        :return: observations (N, D) and infos
        """
        options = dict(options or {})
        mask = self._check_mask(options.pop("reset_mask", None))
        layout = check_options(options)
        seeds = [int(seed) + i for i in range(self.num_envs)] if isinstance(seed, (int, np.integer)) else seed
        if seeds is not None and len(seeds) != self.num_envs:
            raise ValueError(f"seed must be a number, or one for each of {self.num_envs} drones, got {len(seeds)} of them")
        infos: dict[str, Any] = {}
        for drone in np.flatnonzero(mask).tolist():
            if seeds is not None and seeds[drone] is not None:
                self._randomness[drone] = seeding.np_random(int(seeds[drone]))
            self._reset_drone(drone, layout, infos)
        self._ended[mask] = False
        return self.core.observations(), infos

    def _check_mask(self, mask: Any) -> np.ndarray:
        if mask is None:
            return np.ones(self.num_envs, dtype=bool)
        if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(f"options['reset_mask'] must be a bool array ({self.num_envs},) with a True, got {mask!r}")
        return mask

    def _reset_drone(self, drone: int, layout: Any, infos: dict[str, Any]) -> None:
        stage = self.core.stage(drone)
        self.core.reset(drone, self._randomness[drone][0], layout)
        for name, value, empty in (
            ("n_obstacles", len(self.core.obstacles[drone]), np.zeros(self.num_envs, dtype=int)),
            ("stage", stage, np.full(self.num_envs, None, dtype=object)),
        ):
            infos.setdefault(name, empty)[drone] = value
            infos.setdefault(f"_{name}", np.zeros(self.num_envs, dtype=bool))[drone] = True

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """
        :param actions: one of each drone (N,)
        :return: observations (N, D), rewards (N,), terminated (N,), truncated (N,), infos
        """
        core, begun = self.core, self._ended
        core.step(np.asarray(actions))
        infos = self._step_infos(~begun)
        for drone in np.flatnonzero(begun).tolist():
            self._reset_drone(drone, check_options(None), infos)
        outcomes = core.outcomes
        terminated, truncated = (outcomes == REACHED) | (outcomes == COLLISION), outcomes == TIMEOUT
        self._ended = terminated | truncated
        for drone in np.flatnonzero(self._ended).tolist():
            core.finish(drone)
        return core.observations(), core.rewards.copy(), terminated, truncated, infos

    def _step_infos(self, stepped: np.ndarray) -> dict[str, Any]:
        """Infos of the drones that moved, in the form of Gymnasium's vector environments."""
        if not stepped.any():
            return {}
        outcomes = self.core.outcomes
        return {
            "outcome": _NAMES[np.where(stepped, outcomes, len(OUTCOMES))],
            "_outcome": stepped,
            "is_success": stepped & (outcomes == REACHED),
            "_is_success": stepped.copy(),
            "clearance": np.where(stepped, self.core.clearances, 0.0),
            "_clearance": stepped.copy(),
        }
