"""What a policy knows of risk: the distortion of returns and its level, the measure on the heads, and the table of alpha."""

import json
import warnings
from typing import Any

import numpy as np
import torch as th
from torch import nn

from sb3_ora.risk.distortions import Distortion, midpoints
from sb3_ora.risk.keys import Observations, StateKey
from sb3_ora.risk.measures import EpistemicMeasure
from sb3_ora.risk.table import RiskTable

RISK_SCOPES = ("state-action", "action", "global")
#: Levels whose weights are kept
MAX_KNOWN = 1000
NO_ACTION = -1


class RiskState(nn.Module):
    """
    The risk attitude of a policy. Adapters write it, the policy reads it; it is part of the policy's ``state_dict``,
    with a table of any size, and stays on the CPU.

    :param distortion: distortion of the return distribution (the paper's beta)
    :param level: level of that distortion
    :param n_samples: number M of fractions over which the distorted mean is taken
    :param measure: risk measure on the law of the heads; None for their mean
    :param table: alpha for each key; None where the measure is the mean
    :param state_key: maps observations to integers; only used with ``scope="state-action"``
    :param scope: what has an alpha of its own: each ``"state-action"`` pair, each ``"action"``, or nothing (``"global"``)
    :param n_actions: number of actions A
    """

    def __init__(
        self,
        distortion: Distortion,
        level: float,
        n_samples: int,
        measure: EpistemicMeasure | None = None,
        table: RiskTable | None = None,
        state_key: StateKey | None = None,
        scope: str = "state-action",
        n_actions: int = 1,
    ):
        super().__init__()
        self.distortion, self.level, self.n_samples = distortion, level, n_samples
        self.measure, self.table, self.state_key = measure, table, state_key
        self.scope, self.n_actions = scope, n_actions
        self.grid: list[float] | None = None  # levels that an adapter chooses from
        self._known_weights: dict[tuple[float, int], np.ndarray] = {}
        self._known_taus: tuple[float, Distortion, th.Tensor, th.Tensor] | None = None  # of the last level
        self.use_mean = measure is None  # no adaptation: the mean of the heads, whatever the measure
        self.midpoints: th.Tensor
        self.register_buffer("midpoints", midpoints(n_samples).unsqueeze(0), persistent=False)

    def taus(self, level: float | np.ndarray | None = None) -> th.Tensor:
        """
        :param level: level of the distortion, one for all observations or one for each, (B,); None for the policy's own
        :return: the fixed distorted fractions at which returns are averaged, not to be changed, (1, M) or (B, M)
        """
        if isinstance(level, np.ndarray):
            levels = th.as_tensor(level, dtype=th.float32, device=self.midpoints.device)
            return self.distortion(self.midpoints, levels.unsqueeze(1))
        level = self.level if level is None else level
        known = self._known_taus
        if known is None or known[0] != level or known[1] is not self.distortion or known[2] is not self.midpoints:
            known = self._known_taus = level, self.distortion, self.midpoints, self.distortion(self.midpoints, level)
        return known[3]

    def state_keys(self, observations: Observations) -> np.ndarray | None:
        """
        :param observations: states, (B, ...)
        :return: their keys, int64 (B,); None unless alpha depends on the state
        """
        return None if self.state_key is None or self.scope != "state-action" else self.state_key(observations)

    def pair_keys(self, states: np.ndarray | None, actions: np.ndarray) -> np.ndarray:
        """
        :param states: what :meth:`state_keys` says of states, (B,)
        :param actions: action indices, (B,); ``NO_ACTION`` is not allowed here
        :return: keys of the table, int64 (B,)
        """
        if self.scope == "global":
            return np.zeros(len(actions), dtype=np.int64)
        if self.scope == "action":
            return actions.astype(np.int64)
        assert states is not None
        return states * self.n_actions + actions

    def keys(self, observations: Observations, actions: np.ndarray) -> np.ndarray:
        """
        :param observations: states, (B, ...)
        :param actions: action indices, (B,); ``NO_ACTION`` is not allowed here
        :return: keys of the table, int64 (B,)
        """
        return self.pair_keys(self.state_keys(observations), actions)

    def alphas(self, observations: Observations, previous_actions: np.ndarray, states: np.ndarray | None = None) -> np.ndarray:
        """
        The level at which each state's actions are compared, alpha(s_t, a_{t-1}) (paper, Algorithm 1, line 4).
        The initial alpha where there is no previous action, unless there is one alpha for everything.

        :param observations: states, (B, ...)
        :param previous_actions: indices of the actions taken before them, (B,), ``NO_ACTION`` at an episode's start
        :param states: what :meth:`state_keys` says of the observations, where that is known already, (B,)
        :return: alpha for each state, (B,)
        """
        if self.table is None or self.use_mean:
            return np.ones(len(previous_actions))
        known = previous_actions != NO_ACTION
        n_known = np.count_nonzero(known)
        if self.scope != "global" and not (len(self.table) and n_known):
            return np.full(len(previous_actions), self.table.initial)
        states = self.state_keys(observations) if states is None else states
        alphas = self.table.lookup(self.pair_keys(states, previous_actions))  # where none is known, of no meaning
        return alphas if self.scope == "global" or n_known == len(known) else np.where(known, alphas, self.table.initial)

    def risk_values(self, values: np.ndarray, alphas: np.ndarray) -> np.ndarray:
        """
        :param values: value of every head, (K, B, A)
        :param alphas: risk level of each state, (B,)
        :return: risk-adjusted values, minus the measure of the loss, (B, A)
        """
        if self.measure is None or self.use_mean or len(values) == 1:
            return values[0] if len(values) == 1 else values.mean(axis=0)
        weights = np.array([self._weights(alpha, len(values)) for alpha in alphas.tolist()], dtype=values.dtype)  # (B, K)
        return np.einsum("kba,bk->ba", np.sort(values, axis=0), weights)

    def _weights(self, alpha: float, n_heads: int) -> np.ndarray:
        """
        Weights (K,) of sorted heads, kept for as many as ``MAX_KNOWN`` levels. These come from a grid, but for those of
        ``RecursiveAdapter`` with CVaR, which are any.
        """
        weights = self._known_weights.get((alpha, n_heads))
        if weights is None:
            assert self.measure is not None
            if len(self._known_weights) >= MAX_KNOWN:
                self._known_weights.clear()
            weights = self._known_weights[alpha, n_heads] = self.measure.weights(alpha, n_heads)
        return weights

    def _layout(self) -> dict[str, Any]:
        """What the rows and columns of the table mean."""
        key = None if self.state_key is None or self.scope != "state-action" else type(self.state_key).__name__
        return {"scope": self.scope, "state_key": key, "grid": self.grid}

    def _fits(self, layout: dict[str, Any]) -> bool:
        """Whether a table with this layout can be used here; if so, its grid is that of this one."""
        mine = self._layout()
        if self.grid is None:  # a policy without an adapter
            self.grid = mine["grid"] = layout["grid"]
        different = [f"{name}={layout[name]!r} instead of {mine[name]!r}" for name in mine if layout[name] != mine[name]]
        if different:
            warnings.warn(f"the learned risk levels are not loaded, as they are of {', '.join(different)}", stacklevel=2)
        return not different

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination[prefix + "level"] = th.tensor([self.level], dtype=th.float64)
        destination[prefix + "use_mean"] = th.tensor([self.use_mean])
        if self.table is not None:
            destination[prefix + "layout"] = th.tensor(list(json.dumps(self._layout()).encode()), dtype=th.uint8)
        for name, part in (("table", self.table), ("state_key", self.state_key)):
            for key, value in ({} if part is None else part.state_dict()).items():
                destination[f"{prefix}{name}.{key}"] = value
        for key in [key for key in destination if key.startswith(prefix)]:
            if destination[key].dtype == th.float64:  # a device without float64 must be able to read the file
                destination[key + ":float64"] = destination.pop(key).view(th.int64)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str], *args: Any
    ) -> None:
        entries: dict[str, dict[str, th.Tensor]] = {"": {}, "table": {}, "state_key": {}}
        for key in [key for key in state_dict if key.startswith(prefix)]:
            value, name = state_dict[key].cpu(), key[len(prefix) :]
            if name.endswith(":float64"):
                value, name = value.view(th.float64), name.removesuffix(":float64")
            part, dot, rest = name.partition(".")  # names of a state key may have dots themselves
            entries[part if dot else ""][rest if dot else name] = value
        if "level" in entries[""]:
            self.level = float(entries[""]["level"])
            self.use_mean = bool(entries[""]["use_mean"])
        elif strict:
            missing_keys.append(prefix + "level")
        layout = entries[""].get("layout")
        if self.table is not None and layout is not None and not self._fits(json.loads(bytes(layout.tolist()))):
            return
        for part in ("table", "state_key"):
            if entries[part] and getattr(self, part) is not None:
                getattr(self, part).load_state_dict(entries[part])
