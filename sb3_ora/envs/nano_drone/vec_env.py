"""N Nano Drones as a vector environment of Stable-Baselines3."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvStepReturn

from sb3_ora.checks import check_integer
from sb3_ora.envs.nano_drone.config import OUTCOMES, REACHED, TIMEOUT, NanoDroneConfig
from sb3_ora.envs.nano_drone.core import NanoDroneCore
from sb3_ora.envs.nano_drone.layouts import Layout, check_options


class NanoDroneVecEnv(VecEnv):
    """
    N drones that are moved together. Drone i does, to the last bit, what a :class:`NanoDroneEnv` does that is seeded with
    ``seed + i``. As always in Stable-Baselines3, the observation after an episode's last step is the first of the next.

    The arguments are those of :class:`NanoDroneEnv`; it is not drawn.

    :param n_envs: number of drones N
    :raises ValueError: if an argument is out of range
    """

    def __init__(
        self,
        n_envs: int,
        n_obstacles: int = 6,
        mode: str = "first",
        max_steps: int = 200,
        ranger_noise: float = 0.01,
        safe_start: bool = False,
        normalize: bool = False,
        obs_mode: str = "position",
    ):
        config = NanoDroneConfig(n_obstacles, mode, max_steps, ranger_noise, safe_start, normalize, obs_mode)
        n_envs = check_integer("n_envs", n_envs)
        self.core = NanoDroneCore(n_envs, config)
        self.render_mode = None
        super().__init__(n_envs, config.observation_space, config.action_space)
        self._generators: list[np.random.Generator] = [seeding.np_random()[0] for _ in range(n_envs)]
        self._actions = np.zeros(n_envs, dtype=np.int64)

    def reset(self) -> np.ndarray:
        """
        :return: observations (N, D)
        """
        layouts = [check_options(options) for options in self._options]
        for drone, layout in enumerate(layouts):
            if self._seeds[drone] is not None:
                self._generators[drone] = seeding.np_random(self._seeds[drone])[0]
            self.reset_infos[drone] = self._reset_drone(drone, layout)
        self._reset_seeds()
        self._reset_options()
        return self.core.observations()

    def _reset_drone(self, drone: int, layout: Layout) -> dict[str, Any]:
        stage = self.core.stage(drone)
        self.core.reset(drone, self._generators[drone], layout)
        return {"n_obstacles": len(self.core.obstacles[drone]), "stage": stage}

    def step_async(self, actions: np.ndarray) -> None:
        """
        :param actions: one of each drone (N,)
        """
        self._actions = np.asarray(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """
        :return: observations (N, D), rewards (N,), whether episodes have ended (N,), infos
        """
        core = self.core
        core.step(self._actions)
        rewards, dones = core.rewards.astype(np.float32), core.outcomes >= REACHED
        infos: list[dict[str, Any]] = [
            {
                "outcome": OUTCOMES[outcome],
                "is_success": outcome == REACHED,
                "clearance": clearance,
                "TimeLimit.truncated": outcome == TIMEOUT,
            }
            for outcome, clearance in zip(core.outcomes.tolist(), core.clearances.tolist(), strict=True)
        ]
        observations = core.observations()
        if dones.any():
            ended = np.flatnonzero(dones)
            for drone in ended.tolist():
                infos[drone]["terminal_observation"] = observations[drone].copy()
                core.finish(drone)
                self.reset_infos[drone] = self._reset_drone(drone, Layout())
            observations[ended] = core.observations()[ended]
        return observations, rewards, dones, infos

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        value = getattr(self.core.config, attr_name) if hasattr(self.core.config, attr_name) else getattr(self, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        raise NotImplementedError(f"{attr_name} is the same for all drones: make a new NanoDroneVecEnv with it")

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        raise NotImplementedError(f"the drones of a NanoDroneVecEnv are no environments of their own with a {method_name}()")

    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[np.ndarray | None]:
        return [None] * self.num_envs
