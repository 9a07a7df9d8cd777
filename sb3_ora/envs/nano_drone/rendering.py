"""Pictures of one Nano Drone, drawn with pygame."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled

from sb3_ora.envs.nano_drone.config import GOAL_RADIUS, HALF_WIDTH, ROBOT_RADIUS

SIZE = 600  # pixels, for 8.4 m
_SCALE = SIZE / (2.1 * HALF_WIDTH)
_AVERSE, _NEUTRAL, _UNKNOWN = np.array([200, 40, 40]), np.array([40, 90, 200]), (60, 60, 60)
_BACKGROUND, _WALL, _OBSTACLE, _GOAL, _RAY = (255, 255, 255), (30, 30, 30), (150, 150, 150), (120, 200, 120), (240, 170, 60)


def risk_colour(level: float | None) -> tuple[int, ...]:
    """
    :param level: risk level, from 0 (averse, red) to 1 (neutral, blue); None where there is none
    :return: red, green, blue, each from 0 to 255
    """
    if level is None:
        return _UNKNOWN
    share = min(max(level, 0.0), 1.0)
    return tuple(np.rint((1 - share) * _AVERSE + share * _NEUTRAL).astype(int).tolist())


def to_pixels(points: Any) -> np.ndarray:
    """
    :param points: positions in metres (..., 2)
    :return: column and row in the picture (..., 2)
    """
    return np.rint(SIZE / 2 + np.asarray(points) * [_SCALE, -_SCALE]).astype(int)


class Renderer:
    """
    A canvas, and with ``render_mode="human"`` a window that shows it.

    :param render_mode: "human" or "rgb_array"
    :param fps: pictures a second in the window
    :raises DependencyNotInstalled: if pygame cannot be imported
    """

    def __init__(self, render_mode: str, fps: int):
        try:
            import pygame
        except ImportError as error:
            message = f'render_mode="{render_mode}" needs pygame: pip install pygame-ce'
            raise DependencyNotInstalled(message) from error
        self.pygame, self.render_mode, self.fps = pygame, render_mode, fps
        pygame.font.init()
        self.font = pygame.font.Font(None, 28)
        self.canvas = pygame.Surface((SIZE, SIZE))
        self.window: Any = None
        if render_mode == "human":
            pygame.display.init()
            pygame.display.set_caption("Nano Drone")
            self.window = pygame.display.set_mode((SIZE, SIZE))
            self.clock = pygame.time.Clock()

    def draw(
        self,
        obstacles: np.ndarray,
        goal: np.ndarray,
        state: np.ndarray,
        trail: Sequence[tuple[float, float, float | None]],
        risk_level: float | None,
    ) -> np.ndarray | None:
        """
        :param obstacles: cx, cy, wx, wy (n, 4)
        :param goal: its position (2,)
        :param state: x, y, vx, vy, goal distance, ranges towards +x, +y, -x, -y (9,)
        :param trail: x, y and risk level of each step up to now
        :param risk_level: the number to show; None for none
        :return: the picture (600, 600, 3) with ``render_mode="rgb_array"``
        """
        draw, canvas = self.pygame.draw, self.canvas
        canvas.fill(_BACKGROUND)
        draw.circle(canvas, _GOAL, to_pixels(goal), GOAL_RADIUS * _SCALE)
        for obstacle in obstacles:
            draw.rect(canvas, _OBSTACLE, self._rectangle(obstacle[:2], obstacle[2:]))
        draw.rect(canvas, _WALL, self._rectangle(np.zeros(2), np.full(2, 2 * HALF_WIDTH)), width=2)
        self._draw_rays(state)
        for (x, y, _), (next_x, next_y, level) in itertools.pairwise(trail):
            draw.line(canvas, risk_colour(level), to_pixels((x, y)), to_pixels((next_x, next_y)), width=3)
        draw.circle(canvas, risk_colour(risk_level), to_pixels(state[:2]), max(ROBOT_RADIUS * _SCALE, 5))
        if risk_level is not None:
            canvas.blit(self.font.render(f"alpha {risk_level:.2f}", True, risk_colour(risk_level)), (20, 20))
        return self._show()

    @staticmethod
    def _rectangle(centre: np.ndarray, widths: np.ndarray) -> tuple[int, ...]:
        """Left, top, width and height in pixels."""
        corner = to_pixels(centre + widths * [-0.5, 0.5])
        return (*corner.tolist(), *np.rint(widths * _SCALE).astype(int).tolist())

    def _draw_rays(self, state: np.ndarray) -> None:
        for (x, y), length in zip(((1, 0), (0, 1), (-1, 0), (0, -1)), state[5:], strict=True):
            end = state[:2] + length * np.array([x, y])
            self.pygame.draw.line(self.canvas, _RAY, to_pixels(state[:2]), to_pixels(end))

    def _show(self) -> np.ndarray | None:
        if self.window is None:
            return np.transpose(self.pygame.surfarray.array3d(self.canvas), (1, 0, 2))
        self.window.blit(self.canvas, (0, 0))
        self.pygame.event.pump()
        self.pygame.display.update()
        self.clock.tick(self.fps)
        return None

    def close(self) -> None:
        """Close the window, if there is one."""
        if self.window is not None:
            self.pygame.display.quit()
            self.window = None
