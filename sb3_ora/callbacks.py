"""What users give to ``learn(callback=...)``."""

from collections.abc import Iterator
from typing import Any

from stable_baselines3.common.callbacks import CallbackList, EventCallback


def walk_callbacks(callback: Any) -> Iterator[Any]:
    """
    :param callback: a callback, a list of them, a function, or None
    :return: all callbacks in it, however deep, without the lists that hold them
    """
    parts = callback.callbacks if isinstance(callback, CallbackList) else callback
    if isinstance(parts, list):
        for part in parts:
            yield from walk_callbacks(part)
    elif callback is not None:
        yield callback
        if isinstance(callback, EventCallback):
            yield from walk_callbacks(callback.callback)
            yield from walk_callbacks(getattr(callback, "callback_on_new_best", None))
