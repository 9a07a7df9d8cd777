"""The Nano Drone world of N drones at once; all environments of this package are made of it."""

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import numpy as np
from gymnasium.error import ResetNeeded

from sb3_ora.envs.nano_drone import geometry
from sb3_ora.envs.nano_drone.config import MAX_RANGE, NOTHING, REACHED, ROBOT_RADIUS, STATE_WIDTH, VELOCITIES, NanoDroneConfig
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
        most = {"eval": config.n_obstacles, "first": config.n_obstacles, "fixed": len(FIXED_OBSTACLES)}
        n_places = 1 + most.get(config.mode, 2 * config.n_obstacles)
        self.edges = np.full((2, 2 * n_places, n_drones), NOWHERE)
        self.obstacles: list[np.ndarray] = [np.empty((0, 4))] * n_drones
        self.generators: list[np.random.Generator | None] = [None] * n_drones
        self._unplaced = set(range(n_drones))  # never reset so far
        self.goals = np.zeros((n_drones, 2))
        self.state = np.zeros((n_drones, STATE_WIDTH))  # x, y, vx, vy, distance to the goal, ranges +x, +y, -x, -y
        self.steps = np.zeros(n_drones, dtype=np.int64)
        self.rewards = np.zeros(n_drones)
        self.outcomes = np.zeros(n_drones, dtype=np.int64)
        self.clearances = np.zeros(n_drones)
        self.noisy = config.ranger_noise > 0
        self.noise = np.zeros((n_drones, NOISE_BLOCK, 4))
        self._quiet_steps = 0  # for which no drone needs new noise
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
        stage, sense = self.stage(drone), self.backend.sense
        self.generators[drone] = generator
        self._unplaced.discard(drone)
        obstacles = draw_obstacles(generator, self.config, stage) if layout.obstacles is None else layout.obstacles
        self._place(drone, obstacles)
        edges = np.ascontiguousarray(self.edges[:, :, drone, None])  # (2, 2 M, 1)
        start, goal = layout.start, layout.goal
        if start is None:
            start = EVALUATION_START if stage == "eval" else draw_start(generator, edges, sense)
        if goal is None:
            goal = draw_goal(generator)
        self.goals[drone] = goal
        if self.noisy:
            self._draw_noise(drone)

        distance, *ranges = sense(edges, start[None])[0].tolist()
        (x, y), (goal_x, goal_y) = start.tolist(), goal.tolist()
        to_x, to_y = goal_x - x, goal_y - y
        noisy = [
            min(max(true + error, 0.0), MAX_RANGE) for true, error in zip(ranges, self.noise[drone, 0].tolist(), strict=True)
        ]
        self.state[drone] = (x, y, 0.0, 0.0, sqrt(to_x * to_x + to_y * to_y), *noisy)
        self.steps[drone], self.outcomes[drone], self.rewards[drone] = 0, NOTHING, 0.0
        self.clearances[drone] = distance - ROBOT_RADIUS

    def _place(self, drone: int, obstacles: np.ndarray) -> None:
        n, n_places = len(obstacles), self.edges.shape[1] // 2
        if n >= n_places:  # more than the mode ever draws
            more = np.full((2, 2, n + 1 - n_places, self.n_drones), NOWHERE)
            sides = self.edges.reshape(2, 2, n_places, self.n_drones)
            self.edges = np.concatenate([sides, more], axis=2).reshape(2, -1, self.n_drones)
        rectangle_edges(obstacles, self.edges[:, :, drone])
        self.obstacles[drone] = obstacles

    def _draw_noise(self, drone: int) -> None:
        generator = self.generators[drone]
        assert generator is not None
        generator.standard_normal(out=self.noise[drone])
        self.noise[drone] *= self.config.ranger_noise

    def _renew_noise(self) -> None:
        """Draw noise where it is used up, except for what flies on after its end, and count the steps until the next time."""
        left = NOISE_BLOCK - 1 - self.steps % NOISE_BLOCK
        for drone in np.flatnonzero((left == 0) & (self.outcomes < REACHED)).tolist():
            self._draw_noise(drone)
        self._quiet_steps = int(np.where(left == 0, NOISE_BLOCK, left).min())

    def step(self, actions: np.ndarray) -> None:
        """
        Move every drone; ``state``, ``rewards``, ``outcomes``, ``clearances`` and ``steps`` say what came of it.

        :param actions: one of each drone (N,)
        :raises ValueError: if there is no such action
        :raises ResetNeeded: if a drone has never been reset
        """
        if self._unplaced:
            raise ResetNeeded("call reset() before step()")
        if self.noisy:
            if self._quiet_steps == 0:
                self._renew_noise()
            self._quiet_steps -= 1
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
