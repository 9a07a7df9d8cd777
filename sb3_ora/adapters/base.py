"""What all risk adapters have in common: SB3 callbacks that move a policy's risk attitude during training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, EventCallback
from stable_baselines3.common.type_aliases import MaybeCallback, Schedule

from sb3_ora.callbacks import walk_callbacks
from sb3_ora.checks import check_verbose
from sb3_ora.risk.distortions import Neutral

if TYPE_CHECKING:
    from sb3_ora.iqn.iqn import IQN


class RiskAdapter(BaseCallback):
    """
    Base of the adapters. Each model has one, whose state is saved with it as plain tensors and values.
    An adapter's arguments default to None, which stands for the model's argument of the same name.

    :param verbose: verbosity level
    """

    #: Names of the arguments that may be left to the model, each with the value to use where the model has none
    defaults: dict[str, Any] = {}  # noqa: RUF012
    #: Whether it needs the values of every action taken, also of random ones
    watches_actions = False
    model: IQN

    def __init__(self, verbose: int = 0):
        super().__init__(check_verbose(verbose))
        #: Level of the return distortion at which each environment now acts, (E,); None for the policy's own
        self.acting_level: np.ndarray | None = None
        #: Fractions at which the adapter wants the acting quantiles too, (N,)
        self.tail_taus: th.Tensor | None = None
        self.options: dict[str, Any] = {}
        #: States of adapters of other kinds that the model has had, by kind
        self.states_of_others: dict[str, Any] = {}

    def bind(self, model: IQN) -> None:
        """
        Make this the adapter of a model: settle the arguments and set up the state.

        :param model: the model whose risk attitude it moves
        :raises ValueError: if an argument differs from the model's
        """
        self.model = model
        self.options = {name: self._settle(model, name, default) for name, default in self.defaults.items()}
        self._bind()

    def _settle(self, model: IQN, name: str, default: Any) -> Any:
        mine, theirs = _as_tuple(getattr(self, name, None)), _as_tuple(getattr(model, name, None))
        if mine is not None and theirs is not None and mine != theirs:
            raise ValueError(
                f"{name}={mine!r} of the {type(self).__name__} contradicts {name}={theirs!r} of the {type(model).__name__}: "
                "give it to the model, or leave one of them out"
            )
        given = theirs if mine is None else mine
        return default if given is None else given

    def _bind(self) -> None:
        """Set up what the adapter learns; the policy exists."""

    def seed(self, seed: int) -> None:
        """
        Seed the adapter's own random numbers, as ``set_random_seed`` of the model does.

        :param seed: the seed
        """

    def apply_to_policy(self) -> None:
        """Set what the policy must know to act as this adapter wants; another one may have set it before."""

    def _require_distortion(self) -> None:
        """
        :raises ValueError: if the model's returns are not distorted, so that their level means nothing
        """
        if isinstance(self.model.policy.risk.distortion, Neutral):
            raise ValueError(f"{type(self).__name__} moves the level of a distortion, but the model has distortion='neutral'")

    def _level_schedule(self) -> Schedule | None:
        """The schedule of the return distortion's level; None where the adapter sets the level itself."""
        return self.model.level_schedule

    def update_level(self) -> None:
        """Set the level of the return distortion by its schedule, if it has one; called after every step."""
        schedule = self._level_schedule()
        if schedule is not None:
            self.model.policy.risk.level = schedule(self.model._current_progress_remaining)

    def _on_training_start(self) -> None:
        self.update_level()

    def _on_step(self) -> bool:
        return True

    def record(self) -> None:
        """Write to the logger, just before it is dumped."""
        if not isinstance(self.model.policy.risk.distortion, Neutral):
            self.model.logger.record("risk/level", self.model.policy.risk.level)

    # State

    @property
    def kind(self) -> str:
        """What saved states are told apart by."""
        return type(self).__name__

    def learned_state(self) -> dict[str, Any]:
        """
        :return: what the adapter has learned, as tensors and plain values
        """
        return {}

    def load_learned_state(self, state: dict[str, Any]) -> None:
        """
        :param state: what :meth:`learned_state` returned
        """

    def state_dict(self) -> dict[str, Any]:
        """
        :return: the adapter's state, as tensors and plain values
        :raises ValueError: if something else is in it, which could not be loaded
        """
        learned = _plain(self.learned_state(), f"learned_state() of {type(self).__name__}")
        return {"kind": self.kind, "learned": learned, "others": self.states_of_others}

    def load_state_dict(self, state: dict[str, Any], strict: bool = True) -> None:
        """
        :param state: what :meth:`state_dict` of this or another adapter returned; states of other kinds are kept aside
            for adapters of these kinds
        :param strict: not used: the state is always complete
        """
        states = {**state["others"], state["kind"]: state["learned"]}
        if self.kind in states:
            self.load_learned_state(states.pop(self.kind))
        self.states_of_others = states

    def continue_from(self, other: RiskAdapter) -> None:
        """
        Go on where another adapter of the model stopped, if it, or one before it, was of the same kind.

        :param other: the adapter before this one
        """
        self.load_state_dict(other.state_dict())

    def __getstate__(self) -> dict[str, Any]:
        # Without the model, which would be copied and pickled whole
        dropped = {"model", "parent", "locals", "globals"}
        state = {name: value for name, value in self.__dict__.items() if name not in dropped}
        return {**state, "parent": None, "locals": {}, "globals": {}}


def _as_tuple(value: Any) -> Any:
    """Lists and arrays as tuples, which can be compared as a whole."""
    return tuple(value) if isinstance(value, list | np.ndarray) and np.ndim(value) == 1 and len(value) else value


def _plain(state: Any, name: str) -> Any:
    """
    :param state: tensors, plain values, and what NumPy has of both
    :param name: what it is, for the message
    :return: the same without NumPy's
    :raises ValueError: if something else is in it, which torch would not load from a file
    """
    if isinstance(state, dict):
        return {key: _plain(value, f"{name}[{key!r}]") for key, value in state.items()}
    if isinstance(state, list | tuple):
        parts = [_plain(value, f"{name}[{i}]") for i, value in enumerate(state)]
        return parts if isinstance(state, list) else tuple(parts)
    if isinstance(state, np.ndarray) and state.dtype.kind in "biuf":
        return th.tensor(state)  # a copy: the adapter goes on with its own
    if isinstance(state, np.generic):
        state = state.item()
    if state is None or isinstance(state, bool | int | float | str | th.Tensor):
        return state
    raise ValueError(f"{name} must be a tensor, number, text, or list or dict of these, got {state!r}")


def find_adapters(callback: MaybeCallback | Callable) -> list[RiskAdapter]:
    """
    :param callback: what a user gives to ``learn``
    :return: the risk adapters in it, however deep
    :raises ValueError: for an adapter inside an event callback, where it would miss steps
    """
    parts = list(walk_callbacks(callback))
    for event in parts:
        for inner in walk_callbacks(event) if isinstance(event, EventCallback) else ():
            if isinstance(inner, RiskAdapter):
                raise ValueError(
                    f"a {type(inner).__name__} inside a {type(event).__name__} would only see some steps: "
                    "give it to learn(callback=...) beside it, in a list"
                )
    return [part for part in parts if isinstance(part, RiskAdapter)]
