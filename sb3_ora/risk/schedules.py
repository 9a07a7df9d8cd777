"""Schedules of the risk level over training, in Stable-Baselines3's convention (progress remaining, 1 to 0)."""

from collections.abc import Callable, Sequence

import numpy as np

from sb3_ora.checks import check_number
from sb3_ora.risk._common import ByValue
from sb3_ora.risk.distortions import Distortion


class PiecewiseLinear(ByValue):
    """
    Piecewise linear schedule with equally spaced knots over training; constant for a single point.

    :param points: Values at the knots, the first at the start of training, the last at its end.
    :raises ValueError: If there are no points or one is not finite.
    """

    def __init__(self, points: Sequence[float]):
        if isinstance(points, str) or not hasattr(points, "__len__") or len(points) == 0:
            raise ValueError(f"points must be a list of at least one value, got {points!r}")
        self.points = tuple(check_number("points", point) for point in points)

    def __call__(self, progress_remaining: float) -> float:
        """
        Value of the schedule.

        :param progress_remaining: 1 at the start of training, 0 at its end; values outside [0, 1] count as the nearer end.
        :return: The scheduled value.
        """
        if len(self.points) == 1:
            return self.points[0]
        knots = np.linspace(0.0, 1.0, len(self.points))
        return float(np.interp(1.0 - progress_remaining, knots, self.points))


class NumberSchedule(ByValue):
    """
    A schedule whose values are plain numbers, also where a function returns an array or a tensor of no dimension.

    :param schedule: Function of the progress remaining.
    """

    def __init__(self, schedule: Callable[[float], float]):
        self.schedule = schedule

    def __call__(self, progress_remaining: float) -> float:
        """
        Value of the schedule.

        :param progress_remaining: 1 at the start of training, 0 at its end.
        :return: The scheduled value.
        :raises ValueError: If it is not a number.
        """
        value = self.schedule(progress_remaining)
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ValueError(f"risk_level must return a number for {progress_remaining}, got {value!r}") from None


def make_level_schedule(spec: float | str | Callable[[float], float]) -> Callable[[float], float]:
    """
    Schedule of the risk level.

    :param spec: A number (constant level), a text such as "0.1->0.9->0.1" (piecewise linear over training) or "0.25",
        or a function of the progress remaining.
    :return: A function of the progress remaining (1 at the start, 0 at the end).
    :raises ValueError: If it is none of these, the text cannot be read, or a number is not finite.
    """
    if callable(spec):
        return spec if isinstance(spec, PiecewiseLinear | NumberSchedule) else NumberSchedule(spec)
    try:
        points = [float(part) for part in spec.split("->")] if isinstance(spec, str) else [check_number("risk_level", spec)]
    except ValueError:
        allowed = "a number, text such as '0.1->0.9->0.1', or a function of the progress remaining"
        raise ValueError(f"risk_level must be {allowed}, got {spec!r}") from None
    return PiecewiseLinear([check_number("risk_level", point) for point in points])


def check_schedule(schedule: Callable[[float], float], distortion: Distortion) -> None:
    """
    :param schedule: A schedule of the risk level.
    :param distortion: The distortion whose level it is.
    :raises ValueError: If the level is not one of the distortion's at the start, at the end or at a knot.
    """
    for level in getattr(schedule, "points", (schedule(1.0), schedule(0.0))):
        distortion.check_level(level)
