"""Imports or-gym without gym, and gives its environments random numbers of their own."""

import builtins
import functools
import importlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import DependencyNotInstalled

MODULES = ("binpacking", "tsp", "vehicle_routing", "vmpacking")


class RandomSource:
    """
    The random numbers of one environment: for numpy, scipy and the standard library.

    :param seed: their seed, in [0, 2^32)
    """

    def __init__(self, seed: int):
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """
        :param seed: their seed from now on, in [0, 2^32)
        """
        self.numpy, self.standard = np.random.RandomState(seed), random.Random(seed)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, or-gym draws from this source."""
        token = _source.set(self)
        try:
            yield
        finally:
            _source.reset(token)


_source: ContextVar[RandomSource | None] = ContextVar("_source", default=None)


class _NumpyRandom:
    """Stands for ``numpy.random``."""

    def __getattr__(self, name: str) -> Any:
        source = _source.get()
        return getattr(np.random if source is None else source.numpy, name)


class _StandardRandom:
    """Stands for the module ``random``."""

    def __getattr__(self, name: str) -> Any:
        source = _source.get()
        return getattr(random if source is None else source.standard, name)


class _TruncatedNormal:
    """Stands for ``scipy.stats.truncnorm``, given as ``law``."""

    def __init__(self, law: Any):
        self.law = law

    def rvs(self, *args: Any) -> Any:
        source = _source.get()
        return self.law.rvs(*args, random_state=None if source is None else source.numpy)


def _print(*args: Any, **kwargs: Any) -> None:
    if _source.get() is None:
        builtins.print(*args, **kwargs)


def _module(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(content)
    return module


def _gym() -> dict[str, ModuleType]:
    """What or-gym imports of gym, made of parts of gymnasium."""

    class Env:
        def seed(self, seed: int | None = None) -> None:
            """Called by or-gym, to no effect."""

    def register(**kwargs: Any) -> None:
        """Called by or-gym, to no effect."""

    wrappers = {name: object for name in ("Wrapper", "ObservationWrapper", "ActionWrapper", "RewardWrapper")}
    registration = _module("gym.envs.registration", register=register)
    seeding = gymnasium.utils.seeding
    modules = {
        "gym.core": _module("gym.core", Env=Env, **wrappers),
        "gym.envs": _module("gym.envs", register=register, make=None, spec=None, registration=registration),
        "gym.envs.registration": registration,
        "gym.error": gymnasium.error,
        "gym.logger": gymnasium.logger,
        "gym.spaces": gymnasium.spaces,
        "gym.utils": _module("gym.utils", seeding=seeding),
        "gym.utils.seeding": seeding,
    }
    parts = {name.removeprefix("gym."): module for name, module in modules.items() if name.count(".") == 1}
    return {"gym": _module("gym", Env=Env, **parts), **modules}


@functools.cache
def classic_problems() -> dict[str, ModuleType]:
    """
    Import or-gym, which needs no gym for that, and let the modules below draw from the :class:`RandomSource` in use.

    :return: the modules ``or_gym.envs.classic_or.*`` by their last names
    :raises DependencyNotInstalled: if or-gym, or a package that it imports, is missing
    """
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "gym"}
    for name in before:
        del sys.modules[name]
    stand_in = _gym()
    sys.modules.update(stand_in)
    try:
        modules = {name: importlib.import_module(f"or_gym.envs.classic_or.{name}") for name in MODULES}
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        package = "--no-deps or-gym" if missing == "or_gym" else missing
        raise DependencyNotInstalled(f"or-gym cannot be imported ({error}): pip install {package}") from error
    finally:
        for name in stand_in:
            del sys.modules[name]
        sys.modules.update(before)
    numpy = _module("numpy", **{**vars(np), "random": _NumpyRandom()})
    for module in modules.values():
        module.__dict__["np"] = numpy
    routing = modules["vehicle_routing"].__dict__
    routing.update(random=_StandardRandom(), truncnorm=_TruncatedNormal(routing["truncnorm"]), print=_print)
    return modules
