"""``geometry.py`` for numba: a loop over drones and rectangles, with the same operations in the same order."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from sb3_ora.envs.nano_drone.config import (
    COLLISION,
    COLLISION_REWARD,
    DANGER,
    DANGER_SLOPE,
    DANGEROUS,
    GOAL_RADIUS,
    GOAL_REWARD,
    MAX_RANGE,
    NOTHING,
    RAY_MARGIN,
    REACHED,
    ROBOT_RADIUS,
    STEP_REWARD,
    TIME_STEP,
    TIMEOUT,
    VELOCITIES,
)
from sb3_ora.envs.nano_drone.geometry import ON_LINE


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """
    :param function: what to compile; the machine code is kept on disk where there is a place for it
    :return: the compiled function
    """
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # no folder can be written to
        return numba.njit(function)


@compiled
def _rays(level: float, first: float, second: float, ahead: float, behind: float) -> tuple[float, float]:
    """Shorten the rays ahead and behind to the two edges across them, if the drone is level with those."""
    if level <= RAY_MARGIN:
        for offset in (first, second):
            distance = abs(offset)
            if offset >= -RAY_MARGIN:
                ahead = min(ahead, distance)
            if offset <= RAY_MARGIN:
                behind = min(behind, distance)
    return ahead, behind


@compiled
def _sense(edges: np.ndarray, column: int, x: float, y: float, result: np.ndarray) -> None:
    """Distance and ranges of one drone, (5,)."""
    half = edges.shape[1] // 2
    squared, east, north, west, south = np.inf, MAX_RANGE, MAX_RANGE, MAX_RANGE, MAX_RANGE
    for box in range(half):
        left, right = edges[0, box, column] - x, edges[0, box + half, column] - x
        lower, upper = edges[1, box, column] - y, edges[1, box + half, column] - y
        beyond_x, beyond_y = max(left, -right), max(lower, -upper)
        inside, outside_x, outside_y = min(max(beyond_x, beyond_y), 0.0), max(beyond_x, 0.0), max(beyond_y, 0.0)
        squared = min(squared, inside * inside + outside_x * outside_x + outside_y * outside_y)
        east, west = _rays(beyond_y, left, right, east, west)
        north, south = _rays(beyond_x, lower, upper, north, south)
    result[0] = np.sqrt(squared)
    result[1], result[2], result[3], result[4] = east, north, west, south
    if result[0] <= 2 * RAY_MARGIN:
        _rays_along(edges, column, x, y, result)


@compiled
def _rays_along(edges: np.ndarray, column: int, x: float, y: float, result: np.ndarray) -> None:
    """Set the ranges to 0 of the rays that run along an edge."""
    half = edges.shape[1] // 2
    for box in range(half):
        left, right = edges[0, box, column] - x, edges[0, box + half, column] - x
        lower, upper = edges[1, box, column] - y, edges[1, box + half, column] - y
        width = edges[0, box + half, column] - edges[0, box, column]
        height = edges[1, box + half, column] - edges[1, box, column]
        if max(lower, -upper) <= RAY_MARGIN and min(abs(left), abs(right)) * height <= ON_LINE:
            result[2] = result[4] = 0.0
        if max(left, -right) <= RAY_MARGIN and min(abs(lower), abs(upper)) * width <= ON_LINE:
            result[1] = result[3] = 0.0


@compiled
def sense(edges: np.ndarray, points: np.ndarray) -> np.ndarray:
    """See ``geometry.sense``."""
    result = np.empty((len(points), 5))
    for point in range(len(points)):
        column = point if edges.shape[2] > 1 else 0
        _sense(edges, column, points[point, 0], points[point, 1], result[point])
    return result


@compiled
def _judge(late: bool, clearance: float, goal_distance: float) -> tuple[int, float]:
    """Outcome and reward; the first that applies."""
    if late:
        return TIMEOUT, STEP_REWARD + 0.0
    if clearance <= 0.0:
        return COLLISION, STEP_REWARD + COLLISION_REWARD
    if goal_distance < GOAL_RADIUS:
        return REACHED, STEP_REWARD + GOAL_REWARD
    if clearance < DANGER:
        return DANGEROUS, STEP_REWARD - DANGER_SLOPE * (DANGER - clearance)
    return NOTHING, STEP_REWARD + 0.0


@compiled
def step(
    actions: np.ndarray,
    edges: np.ndarray,
    goals: np.ndarray,
    noise: np.ndarray,
    max_steps: int,
    steps: np.ndarray,
    state: np.ndarray,
    rewards: np.ndarray,
    outcomes: np.ndarray,
    clearances: np.ndarray,
) -> bool:
    """See ``geometry.step``."""
    for action in actions:
        if action < 0 or action >= len(VELOCITIES):
            return False
    sensed = np.empty(5)
    for drone in range(len(actions)):
        row = state[drone]
        row[2], row[3] = VELOCITIES[actions[drone], 0], VELOCITIES[actions[drone], 1]
        row[0] += row[2] * TIME_STEP
        row[1] += row[3] * TIME_STEP
        steps[drone] += 1
        _sense(edges, drone, row[0], row[1], sensed)
        to_x, to_y = goals[drone, 0] - row[0], goals[drone, 1] - row[1]
        row[4] = np.sqrt(to_x * to_x + to_y * to_y)
        slot = steps[drone] % noise.shape[1]
        for ray in range(4):
            row[5 + ray] = min(max(sensed[1 + ray] + noise[drone, slot, ray], 0.0), MAX_RANGE)
        clearances[drone] = sensed[0] - ROBOT_RADIUS
        outcomes[drone], rewards[drone] = _judge(steps[drone] >= max_steps, clearances[drone], row[4])
    return True
