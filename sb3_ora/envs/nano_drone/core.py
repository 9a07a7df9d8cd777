"""The Nano Drone world of N drones at once; all environments of this package are made of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sb3_ora.envs.nano_drone import geometry
from sb3_ora.envs.nano_drone.config import NOTHING, REACHED, ROBOT_RADIUS, STATE_WIDTH, VELOCITIES, NanoDroneConfig
from sb3_ora.envs.nano_drone.layouts import (
    EVALUATION_START,
    FIXED_OBSTACLES,
    NOWHERE,
    Layout,
    draw_goal,
    draw_obstacles,
    draw_start,
    rectangle_edges,
)

NOISE_BLOCK = 32  # steps whose noise is drawn at once
SUCCESS_SHARE = 0.8  # at which the curriculum goes on


class Backend(NamedTuple):
    """Functions of ``geometry.py`` or ``compiled.py``."""

    sense: Callable[..., np.ndarray]
    step: Callable[..., bool]


def load_backend(compiled: bool | None = None) -> Backend:
    """
    :param compiled: whether to use numba; None where it is installed
    :return: the functions
    :raises ImportError: if numba is wanted and cannot be imported
    """
    if compiled is not False:
        try:
            from sb3_ora.envs.nano_drone import compiled as numba_geometry

            return Backend(numba_geometry.sense, numba_geometry.step)
        except ImportError:
            if compiled:
                raise
    return Backend(geometry.sense, geometry.step)


class NanoDroneCore:
    """
    N independent drones as arrays. Each draws from a generator of its own, so what happens to it does not depend on
    the others.

    :param n_drones: number of drones N
    :param config: arguments of the environment
    :param compiled: whether to use numba; None where it is installed
    """

    def __init__(self, n_drones: int, config: NanoDroneConfig, compiled: bool | None = None):
        self.n_drones, self.config = n_drones, config
        self.backend = load_backend(compiled)
        n_places = 1 + {"eval": 1, "first": 1, "fixed": 0}.get(config.mode, 2) * int(config.n_obstacles)
        self.edges = np.full((2, 2 * max(n_places, 1 + len(FIXED_OBSTACLES) * (config.mode == "fixed")), n_drones), NOWHERE)
        self.obstacles: list[np.ndarray] = [np.empty((0, 4))] * n_drones
        self.generators: list[np.random.Generator | None] = [None] * n_drones
        self.goals = np.zeros((n_drones, 2))
        self.state = np.zeros((n_drones, STATE_WIDTH))  # x, y, vx, vy, distance to the goal, ranges +x, +y, -x, -y
        self.steps = np.zeros(n_drones, dtype=np.int64)
        self.rewards = np.zeros(n_drones)
        self.outcomes = np.zeros(n_drones, dtype=np.int64)
        self.clearances = np.zeros(n_drones)
        self.noisy = config.ranger_noise > 0
        self.noise = np.zeros((n_drones, NOISE_BLOCK, 4))
        self.successes = np.zeros(n_drones, dtype=np.int64)
        self.episodes = np.zeros(n_drones, dtype=np.int64)
        self.advanced = np.zeros(n_drones, dtype=bool)  # whether the curriculum has reached its second stage
        self._columns, self._units = config.columns, config.units

    def stage(self, drone: int) -> str:
        """
        :param drone: which one
        :return: the mode of its next reset: "first", "second", "eval" or "fixed"
        """
        if self.config.mode != "curriculum":
            return self.config.mode
        return "second" if self.advanced[drone] else "first"

    def reset(self, drone: int, generator: np.random.Generator, layout: Layout) -> None:
        """
        Begin an episode of one drone. Random numbers are drawn for the parts that the layout leaves open.

        :param drone: which one
        :param generator: its source of random numbers, until the next reset
        :param layout: what the user has fixed
        """
        config, stage = self.config, self.stage(drone)
        drawn = draw_obstacles(generator, config, stage) if layout.obstacles is None else layout.obstacles
        self._place(drone, drawn)
        edges = np.ascontiguousarray(self.edges[:, :, drone])
        if layout.start is not None:
            start: Any = layout.start
        else:
            start = EVALUATION_START if stage == "eval" else draw_start(generator, edges, self.backend.sense)
        self.goals[drone] = draw_goal(generator) if layout.goal is None else layout.goal
        self.generators[drone], self.obstacles[drone] = generator, drawn
        self.steps[drone], self.outcomes[drone], self.rewards[drone] = 0, NOTHING, 0.0
        if self.noisy:
            self._draw_noise(drone)

        row = self.state[drone]
        row[:2], row[2:4] = start, 0.0
        sensed = self.backend.sense(edges[:, :, None], row[None, :2])[0]
        to_x, to_y = self.goals[drone] - row[:2]
        row[4] = np.sqrt(to_x * to_x + to_y * to_y)
        row[5:] = np.clip(sensed[1:] + self.noise[drone, 0], 0.0, 4.0)
        self.clearances[drone] = sensed[0] - ROBOT_RADIUS

    def _place(self, drone: int, obstacles: np.ndarray) -> None:
        n_places = self.edges.shape[1] // 2
        if len(obstacles) >= n_places:  # more than the mode ever draws
            more = np.full((2, 2, len(obstacles) + 1 - n_places, self.n_drones), NOWHERE)
            sides = self.edges.reshape(2, 2, n_places, self.n_drones)
            self.edges = np.concatenate([sides, more], axis=2).reshape(2, -1, self.n_drones)
            n_places = self.edges.shape[1] // 2
        self.edges[:, :, drone] = rectangle_edges(obstacles, n_places)

    def _draw_noise(self, drone: int) -> None:
        generator = self.generators[drone]
        assert generator is not None
        generator.standard_normal(out=self.noise[drone])
        self.noise[drone] *= self.config.ranger_noise

    def step(self, actions: np.ndarray) -> None:
        """
        Move every drone; ``state``, ``rewards``, ``outcomes``, ``clearances`` and ``steps`` say what came of it.

        :param actions: one of each drone (N,)
        :raises ValueError: if there is no such action
        """
        if self.noisy:
            ending = self.steps % NOISE_BLOCK == NOISE_BLOCK - 1
            for drone in np.flatnonzero(ending & (self.outcomes < REACHED)):  # what flies on after its end draws no numbers
                self._draw_noise(drone)
        integers = actions.shape == (self.n_drones,) and np.issubdtype(actions.dtype, np.integer)
        moved = integers and self.backend.step(
            actions.astype(np.int64, copy=False),
            self.edges,
            self.goals,
            self.noise,
            self.config.max_steps,
            self.steps,
            self.state,
            self.rewards,
            self.outcomes,
            self.clearances,
        )
        if not moved:
            allowed = f"an integer in [0, {len(VELOCITIES) - 1}]" + (
                f" for each of {self.n_drones}" if self.n_drones > 1 else ""
            )
            raise ValueError(f"action must be {allowed}, got {actions}")

    def observations(self) -> np.ndarray:
        """What the drones observe, float32 (N, D)."""
        observed = self.state.take(self._columns, axis=1)
        if self._units is not None:
            observed /= self._units
        return observed.astype(np.float32)

    def finish(self, drone: int) -> None:
        """
        Count an episode that has ended, for the curriculum: once 0.8 of all episodes, counting the one to come, have
        reached the goal, the second stage begins for good.

        :param drone: whose episode it was
        """
        self.episodes[drone] += 1
        self.successes[drone] += self.outcomes[drone] == REACHED
        self.advanced[drone] |= self.successes[drone] >= SUCCESS_SHARE * (self.episodes[drone] + 1)
