"""Where obstacles, drone and goal are when an episode begins."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from sb3_ora.envs.nano_drone.config import HALF_WIDTH, ROBOT_RADIUS, START_CLEARANCE, NanoDroneConfig

NOWHERE = 1e6  # of unused rectangles
EVALUATION_START = np.array([0.0, -3.0])
# Lower limits and widths of the uniform distributions
_OBSTACLE = np.array([-3.5, -3.0, 0.4, 0.2]), np.array([7.0, 4.5, 0.6, 0.6])  # cx, cy, wx, wy
_START = np.array([-2.0, -3.5]), np.array([4.0, 7.0])
_GOAL = np.array([-0.5, 2.0]), np.array([1.0, 1.0])
_BATCH = 8  # starts that are tried at once
_MOST_BATCHES = 2_000

FIXED_OBSTACLES = np.array(
    [
        (-1.91, -1.13, 0.5, 0.38),
        (-2.77, -0.22, 0.95, 0.42),
        (2.64, -1.17, 0.98, 0.51),
        (3.31, -0.41, 0.86, 0.38),
        (0.11, 0.09, 0.6, 0.59),
        (2.1, -2.78, 0.4, 0.45),
        (-0.8, -2.0, 0.8, 0.8),
        (-1.8, 2.0, 0.5, 0.8),
        (2.5, 1.0, 0.5, 0.38),
        (1.0, -1.0, 0.25, 0.7),
        (-1.7, 1.2, 1.4, 0.2),
    ]
)

Sense = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Layout(NamedTuple):
    """The parts of an episode's world; None for what is to be drawn."""

    obstacles: np.ndarray | None = None  # cx, cy, wx, wy (n, 4)
    start: np.ndarray | None = None  # (2,)
    goal: np.ndarray | None = None  # (2,)


def check_options(options: Mapping[str, Any] | None) -> Layout:
    """
    :param options: what the user gave to ``reset``
    :return: the parts of the layout that it fixes
    :raises ValueError: if a part is unknown, has a wrong shape, or does not fit in the world
    """
    options = {} if options is None else options
    if unknown := sorted(set(map(str, options)) - set(Layout._fields)):
        raise ValueError(f"options may hold {', '.join(map(repr, Layout._fields))}, got {', '.join(map(repr, unknown))}")
    obstacles, start, goal = (options.get(name) for name in Layout._fields)
    return Layout(
        None if obstacles is None else _check_obstacles(obstacles),
        None if start is None else _check_point("start", start),
        None if goal is None else _check_point("goal", goal),
    )


def _numbers(name: str, value: Any, wanted: str) -> np.ndarray:
    try:
        numbers = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = np.array(np.nan)
    if not np.isfinite(numbers).all():
        raise ValueError(f"options[{name!r}] must be {wanted}, got {value!r}")
    return numbers


def _check_obstacles(value: Any) -> np.ndarray:
    wanted = "a list of (cx, cy, wx, wy) in metres, with positive widths"
    obstacles = _numbers("obstacles", value, wanted)
    if obstacles.size == 0:
        return np.empty((0, 4))
    if obstacles.ndim != 2 or obstacles.shape[1] != 4 or (obstacles[:, 2:] <= 0).any():
        raise ValueError(f"options['obstacles'] must be {wanted}, got {value!r}")
    return obstacles


def _check_point(name: str, value: Any) -> np.ndarray:
    wanted = f"a pair (x, y) in [-{HALF_WIDTH:g}, {HALF_WIDTH:g}]"
    point = _numbers(name, value, wanted)
    if point.shape != (2,) or (np.abs(point) > HALF_WIDTH).any():
        raise ValueError(f"options[{name!r}] must be {wanted}, got {value!r}")
    return point


def rectangle_edges(obstacles: np.ndarray, edges: np.ndarray) -> None:
    """
    :param obstacles: cx, cy, wx, wy (n, 4)
    :param edges: replaced by those of the world, of the obstacles, and of rectangles far away (2, 2 M), M at least n + 1;
        see ``geometry.py``
    """
    n, n_places = len(obstacles), edges.shape[1] // 2
    lower, upper = edges[:, :n_places], edges[:, n_places:]
    centres, halves = obstacles[:, :2].T, obstacles[:, 2:].T / 2
    lower[:, 0], upper[:, 0] = -HALF_WIDTH, HALF_WIDTH
    lower[:, 1 : n + 1], upper[:, 1 : n + 1] = centres - halves, centres + halves
    lower[:, n + 1 :] = upper[:, n + 1 :] = NOWHERE


def draw_obstacles(generator: np.random.Generator, config: NanoDroneConfig, stage: str) -> np.ndarray:
    """
    :param generator: source of random numbers
    :param config: arguments of the environment
    :param stage: "first", "second", "eval" or "fixed"
    :return: cx, cy, wx, wy (n, 4)
    """
    n = config.n_obstacles
    if stage == "fixed":
        return FIXED_OBSTACLES.copy()
    if stage == "first":
        n = int(generator.integers(0, n, endpoint=True))
    elif stage == "second":
        n = int(generator.integers(n, 2 * n, endpoint=True))
    obstacles = _uniform(generator, _OBSTACLE, (n, 4))
    while stage == "eval" and config.safe_start and (blocking := _blocks_evaluation_start(obstacles)).any():
        obstacles[blocking] = _uniform(generator, _OBSTACLE, (int(blocking.sum()), 4))
    return obstacles


def _uniform(generator: np.random.Generator, limits: tuple[np.ndarray, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    return limits[0] + limits[1] * generator.random(shape)


def _blocks_evaluation_start(obstacles: np.ndarray) -> np.ndarray:
    """Whether the evaluation start lies in each obstacle, or too near to it for a drone to be there (n,)."""
    beyond = np.abs(obstacles[:, :2] - EVALUATION_START) - obstacles[:, 2:] / 2
    return np.hypot(*np.maximum(beyond, 0).T) <= ROBOT_RADIUS


def draw_start(generator: np.random.Generator, edges: np.ndarray, sense: Sense) -> np.ndarray:
    """
    :param generator: source of random numbers
    :param edges: the rectangles (2, 2 M, 1)
    :param sense: ``geometry.sense``, or what does the same
    :return: a point more than a metre from every edge (2,)
    :raises ValueError: if none was found
    """
    for _ in range(_MOST_BATCHES):
        points = _uniform(generator, _START, (_BATCH, 2))
        free = sense(edges, points)[:, 0] - START_CLEARANCE > 0
        if free.any():
            return points[free.argmax()]
    raise ValueError(f"no start is {START_CLEARANCE:g} m from all of options['obstacles']: give options['start'] too")


def draw_goal(generator: np.random.Generator) -> np.ndarray:
    """
    :param generator: source of random numbers
    :return: the goal (2,)
    """
    return _uniform(generator, _GOAL, (2,))
