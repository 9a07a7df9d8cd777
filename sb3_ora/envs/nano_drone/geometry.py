"""
One step of N drones, in numpy.

The world and each obstacle are outlines of axis-parallel rectangles, M in all, the world first. ``edges`` (2, 2 M, N)
holds their left and lower edges, then their right and upper ones: ``edges[0]`` the x of the upright edges, ``edges[1]``
the y of the level ones. Unused places hold a rectangle far away. ``compiled.py`` does the same to the last bit.
"""

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

ON_LINE = 1e-8  # a drone so near to an edge, times the edge's length, is on its line


def sense(edges: np.ndarray, points: np.ndarray) -> np.ndarray:
    """
    Distance from each point to the nearest edge, and to the nearest edge that each ray meets.

    :param edges: rectangles of each point (2, 2 M, P), or of all of them (2, 2 M, 1)
    :param points: positions (P, 2)
    :return: distance to the outlines, then the ranges towards +x, +y, -x, -y, at most 4 m (P, 5)
    """
    n_points = len(points)
    offsets = edges - points.T[:, None]  # (2, 2 M, P)
    sides = offsets.reshape(2, 2, -1, n_points)
    beyond = np.maximum(sides[:, 0], -sides[:, 1])  # how far outside each slab, negative inside (2, M, P)
    outside = np.maximum(beyond, 0.0)
    outside *= outside
    squared = np.minimum(np.maximum(beyond[0], beyond[1]), 0.0)
    squared *= squared
    squared += outside[0]
    squared += outside[1]  # (M, P)
    result = np.empty((n_points, 5))
    np.sqrt(np.minimum.reduce(squared), out=result[:, 0])

    distances = np.abs(offsets)
    meets = (beyond <= RAY_MARGIN)[::-1, None]  # (2, 1, M, P)
    ahead = (meets & (sides >= -RAY_MARGIN)).reshape(offsets.shape)
    behind = (meets & (sides <= RAY_MARGIN)).reshape(offsets.shape)
    np.minimum.reduce(distances, axis=1, where=ahead, initial=MAX_RANGE, out=result[:, 1:3].T)
    np.minimum.reduce(distances, axis=1, where=behind, initial=MAX_RANGE, out=result[:, 3:5].T)
    if np.minimum.reduce(result[:, 0]) <= 2 * RAY_MARGIN:
        _rays_along(edges, distances, meets, result)
    return result


def _rays_along(edges: np.ndarray, distances: np.ndarray, meets: np.ndarray, result: np.ndarray) -> None:
    """Set the ranges to 0 of the rays that run along an edge."""
    sides = edges.reshape(2, 2, -1, edges.shape[-1])
    lengths = (sides[:, 1] - sides[:, 0])[::-1, None]  # of the upright edges, then of the level ones (2, 1, M, P)
    along = (meets & (distances.reshape(2, 2, -1, len(result)) * lengths <= ON_LINE)).any(axis=(1, 2))[::-1]  # (2, P)
    result[:, 1:3][along.T] = 0.0
    result[:, 3:5][along.T] = 0.0


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
    """
    Move every drone, in place.

    :param actions: one of each drone, int64 (N,)
    :param edges: rectangles of each drone (2, 2 M, N)
    :param goals: positions (N, 2)
    :param noise: what is added to the ranges, by the step's number modulo B (N, B, 4)
    :param max_steps: the step at which time is up
    :param steps: steps of the episodes, one more afterwards, int64 (N,)
    :param state: position, velocity, distance to the goal and ranges, replaced (N, 9)
    :param rewards: replaced (N,)
    :param outcomes: codes, replaced, int64 (N,)
    :param clearances: from the drone's rim to the nearest edge, replaced (N,)
    :return: whether all actions exist; nothing has moved where one does not
    """
    if np.minimum.reduce(actions) < 0 or np.maximum.reduce(actions) >= len(VELOCITIES):
        return False
    positions, velocities = state[:, :2], VELOCITIES[actions]
    state[:, 2:4] = velocities
    velocities *= TIME_STEP
    positions += velocities
    steps += 1
    sensed = sense(edges, positions)
    offsets = goals - positions
    offsets *= offsets
    np.sqrt(offsets[:, 0] + offsets[:, 1], out=state[:, 4])
    readings = sensed[:, 1:]
    readings += noise[np.arange(len(steps)), steps % noise.shape[1]]
    np.maximum(readings, 0.0, out=readings)
    np.minimum(readings, MAX_RANGE, out=state[:, 5:])

    np.subtract(sensed[:, 0], ROBOT_RADIUS, out=clearances)
    shortfalls = np.maximum(DANGER - clearances, 0.0)
    np.subtract(STEP_REWARD, DANGER_SLOPE * shortfalls, out=rewards)
    outcomes[:] = np.where(shortfalls > 0, DANGEROUS, NOTHING)
    for outcome, reward, applies in (  # the last that applies counts
        (REACHED, GOAL_REWARD, state[:, 4] < GOAL_RADIUS),
        (COLLISION, COLLISION_REWARD, clearances <= 0.0),
        (TIMEOUT, 0.0, steps >= max_steps),
    ):
        outcomes[applies] = outcome
        rewards[applies] = STEP_REWARD + reward
    return True
