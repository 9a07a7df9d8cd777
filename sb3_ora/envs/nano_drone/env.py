"""One Nano Drone as a Gymnasium environment."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded

from sb3_ora.checks import check_choice
from sb3_ora.envs.nano_drone.config import COLLISION, OUTCOMES, REACHED, TIME_STEP, TIMEOUT, NanoDroneConfig
from sb3_ora.envs.nano_drone.core import NanoDroneCore
from sb3_ora.envs.nano_drone.layouts import check_options

RENDER_MODES = ("human", "rgb_array")


class NanoDroneEnv(gym.Env[np.ndarray, np.int64]):
    """
    A drone flies to a goal between obstacles that it senses with four range finders (Liu et al. 2022, the world of
    "Adaptive Risk Tendency"; also section 5 of DRL-ORA, "Nano Drone Navigation").

    **World.** A square of 8 m by 8 m with walls; obstacles are axis-parallel rectangles. The drone is a disc with a radius
    of 0.05 m, a step takes 0.1 s. **Actions** (12): index ``3 * direction + speed`` with the directions +x, +y, -x, -y and
    the speeds 0.230, 0.552 and 1 m/s. **Observation**: position, distance to the goal, and the ranges towards +x, +y, -x,
    -y, at most 4 m. **Reward** of a step, the first line that applies:

    ========== ============================================= ================================ ==========
    outcome    when                                          reward                           ends
    ========== ============================================= ================================ ==========
    timeout    step ``max_steps``                            -0.1                             truncated
    collision  the rim touches an edge                       -25.1                            terminated
    reached    less than 0.5 m to the goal                   49.9                             terminated
    danger     less than 0.2 m from the rim to an edge       -0.1 - 5 (0.2 - that distance)   no
    nothing                                                  -0.1                             no
    ========== ============================================= ================================ ==========

    ``info`` holds the ``outcome``, ``is_success`` and the ``clearance`` from the rim to the nearest edge in metres; that
    of ``reset`` the number ``n_obstacles`` and the ``stage`` of the curriculum.

    ``reset(options=...)`` takes a dict with any of ``obstacles``, a list of ``(cx, cy, wx, wy)`` (centre and full widths),
    ``start`` and ``goal``, pairs ``(x, y)``, in metres; the rest is drawn.

    :param n_obstacles: number N of obstacles
    :param mode: layouts: "first" draws 0 to N obstacles, "second" N to 2 N, both with a start that is more than 1 m from
        every edge; "curriculum" goes from "first" to "second" once 80 % of all episodes have reached the goal; "eval" has
        N obstacles and starts at (0, -3); "fixed" has 11 obstacles that are always the same
    :param max_steps: the step at which time is up: 200 in the DRL-ORA paper, 251 in the reference code
    :param ranger_noise: standard deviation of the range finders in metres
    :param safe_start: with ``mode="eval"``: draw obstacles anew that the drone would stand in; the reference does not
    :param normalize: observe lengths in units of 4 m instead of metres
    :param obs_mode: "position": x, y, goal distance, ranges; "partial": without x, y; "velocity": x, y, velocity, goal
        distance, ranges
    :param render_mode: "human", "rgb_array" or None; both need pygame
    :raises ValueError: if an argument is out of range
    """

    metadata = {"render_modes": list(RENDER_MODES), "render_fps": round(1 / TIME_STEP)}  # noqa: RUF012

    def __init__(
        self,
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
            check_choice("render_mode", render_mode, RENDER_MODES)
        self.core = NanoDroneCore(1, config)
        self.observation_space, self.action_space = config.observation_space, config.action_space
        self.render_mode = render_mode
        #: Risk level to show in pictures; None for none
        self.risk_level: float | None = None
        self.trail: list[tuple[float, float, float | None]] = []  # x, y, risk level of every step that is shown
        self._renderer: Any = None
        self._started = False

    @property
    def stage(self) -> str:
        """The mode of the next reset: "first", "second", "eval" or "fixed"."""
        return self.core.stage(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        layout, stage = check_options(options), self.stage
        self.core.reset(0, self.np_random, layout)
        self._started = True
        if self.render_mode is not None:
            self.trail = []
            self._show()
        return self.core.observations()[0], {"n_obstacles": len(self.core.obstacles[0]), "stage": stage}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self._started:
            raise ResetNeeded("call reset() before step()")
        core = self.core
        core.step(np.array([action]))
        outcome = int(core.outcomes[0])
        if outcome >= REACHED:
            core.finish(0)
        if self.render_mode is not None:
            self._show()
        success = outcome == REACHED
        info = {"outcome": OUTCOMES[outcome], "is_success": success, "clearance": float(core.clearances[0])}
        terminated = success or outcome == COLLISION
        return core.observations()[0], float(core.rewards[0]), terminated, outcome == TIMEOUT, info

    def _show(self) -> None:
        x, y = self.core.state[0, :2].tolist()
        self.trail.append((x, y, self.risk_level))
        if self.render_mode == "human":
            self.render()

    def render(self) -> np.ndarray | None:
        """
        :return: the picture (600, 600, 3) with ``render_mode="rgb_array"``
        """
        if self.render_mode is None:
            gym.logger.warn(f"render() needs render_mode, one of {', '.join(map(repr, RENDER_MODES))}")
            return None
        if not self._started:
            raise ResetNeeded("call reset() before render()")
        if self._renderer is None:
            from sb3_ora.envs.nano_drone.rendering import Renderer

            self._renderer = Renderer(self.render_mode, self.metadata["render_fps"])
        core = self.core
        return self._renderer.draw(core.obstacles[0], core.goals[0], core.state[0], self.trail, self.risk_level)

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
