"""What is fixed in the Nano Drone world, and what its user chooses. Lengths in metres, times in seconds."""

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from sb3_ora.checks import check_choice, check_flag, check_integer, check_number

HALF_WIDTH = 4.0  # of the world, a square around the origin
ROBOT_RADIUS = 0.05
GOAL_RADIUS = 0.5
START_CLEARANCE = 1.0  # of the drone's centre
TIME_STEP = 0.1
MAX_RANGE = 4.0
RAY_MARGIN = 1e-3  # by which a ray may miss an edge and still hit it
DANGER = 0.2  # of the drone's rim
STEP_REWARD, GOAL_REWARD, COLLISION_REWARD, DANGER_SLOPE = -0.1, 50.0, -25.0, 5.0

OUTCOMES = ("nothing", "danger", "reached", "collision", "timeout")  # an outcome's code is its place
NOTHING, DANGEROUS, REACHED, COLLISION, TIMEOUT = range(5)
MODES = ("first", "second", "curriculum", "eval", "fixed")

# Actions: 3 * direction + speed, directions +x, +y, -x, -y; the zeros are those of cos and sin, as in the reference
_SPEEDS = [(np.exp((level + 1) / 3) - 1) / (np.e - 1) for level in range(3)]
_TURNS = [turn * np.pi / 2 for turn in range(4)]
VELOCITIES = np.array([[speed * np.cos(turn), speed * np.sin(turn)] for turn in _TURNS for speed in _SPEEDS])

# What a drone's state row holds: x, y, vx, vy, distance to the goal, ranges towards +x, +y, -x, -y
STATE_WIDTH = 9
COLUMNS = {"position": [0, 1, 4, 5, 6, 7, 8], "partial": [4, 5, 6, 7, 8], "velocity": list(range(9))}
_FURTHEST = HALF_WIDTH + TIME_STEP  # an episode ends where the drone leaves the world, after a step of at most 0.1
_HIGH = np.array([_FURTHEST, _FURTHEST, 1.0, 1.0, np.sqrt(2) * (HALF_WIDTH + _FURTHEST), *4 * [MAX_RANGE]])
_LOW = np.array([-_FURTHEST, -_FURTHEST, -1.0, -1.0, *5 * [0.0]])
_UNITS = np.array([HALF_WIDTH, HALF_WIDTH, 1.0, 1.0, *5 * [HALF_WIDTH]])


@dataclass(frozen=True)
class NanoDroneConfig:
    """
    The arguments of the Nano Drone environments, see :class:`~sb3_ora.envs.NanoDroneEnv`.

    :raises ValueError: if one is out of range.
    """

    n_obstacles: int = 6
    mode: str = "first"
    max_steps: int = 200
    ranger_noise: float = 0.01
    safe_start: bool = False
    normalize: bool = False
    obs_mode: str = "position"

    def __post_init__(self) -> None:
        for name, minimum in (("n_obstacles", 0), ("max_steps", 1)):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), minimum))
        check_choice("mode", self.mode, MODES)
        check_number("ranger_noise", self.ranger_noise, 0)
        check_choice("obs_mode", self.obs_mode, COLUMNS)
        for name in ("safe_start", "normalize"):
            check_flag(name, getattr(self, name))

    @property
    def columns(self) -> np.ndarray:
        """The columns of the state that are observed (D,)."""
        return np.array(COLUMNS[self.obs_mode])

    @property
    def units(self) -> np.ndarray | None:
        """What the observed numbers are divided by (D,); None for metres and metres per second."""
        return _UNITS[self.columns] if self.normalize else None

    @property
    def observation_space(self) -> spaces.Box:
        """Box that holds every observation of an episode (D,)."""
        units = 1.0 if self.units is None else self.units
        low, high = ((bound[self.columns] / units).astype(np.float32) for bound in (_LOW, _HIGH))
        return spaces.Box(low, high, dtype=np.float32)

    @property
    def action_space(self) -> spaces.Discrete:
        """Twelve velocities."""
        return spaces.Discrete(len(VELOCITIES))
