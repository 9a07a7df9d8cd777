"""Argument checks shared by the public classes: one clear error that names the argument, the value and what is allowed."""

import math
from collections.abc import Collection
from typing import Any


def check_integer(name: str, value: Any, minimum: int = 1) -> int:
    """
    :param name: argument name, for the message
    :param value: what the user gave
    :param minimum: smallest allowed value
    :return: the value as an ``int``
    :raises ValueError: if ``value`` is not an integer of at least ``minimum``
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < minimum:
        raise ValueError(f"{name} must be an integer of at least {minimum}, got {value!r}")
    return int(value)


def check_number(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, open_low: bool = False, open_high: bool = False
) -> float:
    """
    :param name: argument name, for the message
    :param value: what the user gave
    :param low: lower bound
    :param high: upper bound
    :param open_low: whether the lower bound itself is excluded
    :param open_high: whether the upper bound itself is excluded
    :return: the value as a ``float``
    :raises ValueError: if ``value`` is not a finite number in the interval
    """
    left, right = "(" if open_low or math.isinf(low) else "[", ")" if open_high or math.isinf(high) else "]"
    allowed = f"{name} must be a number in {left}{low:g}, {high:g}{right}, got {value!r}"
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(allowed) from error
    if isinstance(value, (str, bool)) or not math.isfinite(number):
        raise ValueError(allowed)
    if number < low or number > high or (open_low and number == low) or (open_high and number == high):
        raise ValueError(allowed)
    return number


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """
    :param name: argument name, for the message
    :param value: what the user gave
    :param choices: allowed values
    :return: the value
    :raises ValueError: if ``value`` is not one of ``choices``
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def check_widths(name: str, value: Any) -> list[int]:
    """
    :param name: argument name, for the message
    :param value: what the user gave: the units of each layer
    :return: the widths as a list of ``int``
    :raises ValueError: if ``value`` is not a list of positive integers
    """
    if isinstance(value, (str, dict)) or not isinstance(value, Collection):
        raise ValueError(f"{name} must be a list of layer widths, got {value!r}")
    return [check_integer(f"each width in {name}", width) for width in value]
