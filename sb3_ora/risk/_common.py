"""Small things the risk modules share: equality by value, generator state, argument checks."""

import json
import math
from numbers import Real
from typing import Any

import numpy as np


class ByValue:
    """Objects that are equal when their class and attributes are, and print as their constructor call."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({arguments})"


def generator_state(generator: np.random.Generator) -> str:
    """
    State of a NumPy generator as JSON, which ``torch.load(weights_only=True)`` accepts.

    :param generator: The generator to describe.
    :return: JSON text for :func:`restore_generator`.
    """
    return json.dumps(generator.bit_generator.state)


def restore_generator(generator: np.random.Generator, state: str) -> None:
    """
    Put a generator back into a state taken with :func:`generator_state`.

    :param generator: The generator to change, of the same kind as the saved one.
    :param state: JSON text.
    """
    generator.bit_generator.state = json.loads(state)


def finite_float(name: str, value: Any) -> float:
    """
    Check that an argument is a finite real number.

    :param name: Name of the argument, for the error message.
    :param value: The value given.
    :return: The value as a float.
    :raises TypeError: If it is not a real number.
    :raises ValueError: If it is infinite or not a number.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return number


def level_interval(alpha_min: float, alpha_max: float) -> tuple[float, float]:
    """
    Check the ends of an interval of risk levels.

    :param alpha_min: Lowest level.
    :param alpha_max: Highest level.
    :return: Both as floats.
    :raises ValueError: Unless ``0 < alpha_min <= alpha_max <= 1``.
    """
    low, high = finite_float("alpha_min", alpha_min), finite_float("alpha_max", alpha_max)
    if not 0.0 < low <= high <= 1.0:
        raise ValueError(f"alpha_min and alpha_max must satisfy 0 < alpha_min <= alpha_max <= 1, got {low} and {high}")
    return low, high
