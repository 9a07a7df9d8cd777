"""Argument checks shared by the public classes: one clear error that names the argument, the value and what is allowed."""

import math
import operator
import os
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

#: Largest seed of numpy's global generator, which Stable-Baselines3 seeds
LARGEST_SEED = 2**32 - 1


def check_integer(name: str, value: Any, minimum: int = 1, maximum: int | None = None) -> int:
    """
    :param name: argument name, for the message
    :param value: what the user gave
    :param minimum: smallest allowed value
    :param maximum: largest allowed value, if there is one
    :return: the value as an ``int``
    :raises ValueError: if ``value`` is not an integer within the limits
    """
    limits = f"of at least {minimum}" if maximum is None else f"in [{minimum}, {maximum}]"
    message = f"{name} must be an integer {limits}, got {value!r}"
    if isinstance(value, (bool, np.bool_)):
        raise ValueError(message)
    try:
        number = operator.index(value)
    except TypeError as error:
        raise ValueError(message) from error
    if number < minimum or (maximum is not None and number > maximum):
        raise ValueError(message)
    return number


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
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(allowed) from error
    if isinstance(value, (str, bool, np.bool_)) or np.ndim(value) or not math.isfinite(number):
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


def check_flag(name: str, value: Any) -> bool:
    """
    :param name: argument name, for the message
    :param value: what the user gave
    :return: the value as a ``bool``
    :raises ValueError: if ``value`` is neither True nor False
    """
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_seed(name: str, value: Any) -> int | None:
    """
    :param name: argument name, for the message
    :param value: what the user gave
    :return: the value
    :raises ValueError: if ``value`` is neither None nor an integer that numpy takes as a seed
    """
    return None if value is None else check_integer(name, value, 0, LARGEST_SEED)


def check_verbose(value: Any) -> int:
    """
    :param value: what the user gave as ``verbose``; True and False count as 1 and 0
    :return: the value as an ``int``
    :raises ValueError: if ``value`` is not an integer of at least 0
    """
    return check_integer("verbose", int(value) if isinstance(value, bool) else value, 0)


def check_kind(name: str, value: Any, kind: type, allowed: str) -> Any:
    """
    :param name: argument name, for the message
    :param value: what the user gave
    :param kind: class of which it must be an instance
    :param allowed: that class in words
    :return: the value
    :raises ValueError: if ``value`` is not an instance of ``kind``
    """
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return value


def check_subclass(name: str, value: Any, base: type, allowed: str) -> Any:
    """
    :param name: argument name, for the message
    :param value: what the user gave
    :param base: class of which it must be a subclass
    :param allowed: that class in words
    :return: the value
    :raises ValueError: if ``value`` is not a subclass of ``base``
    """
    if not isinstance(value, type) or not issubclass(value, base):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return value


def check_callable(name: str, value: Any, allowed: str) -> Any:
    """
    :param name: argument name, for the message
    :param value: what the user gave
    :param allowed: what it is called for, in words
    :return: the value
    :raises ValueError: if ``value`` cannot be called
    """
    if not callable(value):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return value


def check_kwargs(name: str, value: Any) -> dict[str, Any]:
    """
    :param name: argument name, for the message
    :param value: what the user gave: keyword arguments, or None for none
    :return: the keyword arguments
    :raises ValueError: if ``value`` is neither None nor a dict with strings as keys
    """
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{name} must be a dict of keyword arguments, got {value!r}")
    return value


def check_path(name: str, value: Any) -> str:
    """
    :param name: argument name, for the message
    :param value: what the user gave
    :return: the path as a string
    :raises ValueError: if ``value`` is not a path
    """
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError(f"{name} must be a path, got {value!r}")
    return os.fspath(value)


@contextmanager
def named(name: str, value: Any) -> Iterator[None]:
    """
    Name an argument in the errors of a check that knows it, or a part of it, by another name.

    :param name: argument name, for the message
    :param value: what the user gave
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}={value!r}: {error}") from error


def check_no_rendering(name: str, render_mode: Any) -> None:
    """
    Warn where a picture is wanted of an environment of which there is none.

    :param name: of the environment
    :param render_mode: None, or what is wanted
    :raises ValueError: if that is no mode of Gymnasium's
    """
    if render_mode is None:
        return
    check_choice("render_mode", render_mode, ("human", "rgb_array", "rgb_array_list", "ansi", "ansi_list"))
    if render_mode != "rgb_array":  # which Stable-Baselines3 gives to every environment that it makes
        warnings.warn(f"{name} cannot be drawn: render_mode={render_mode!r} has no effect", stacklevel=3)
