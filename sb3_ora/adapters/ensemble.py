"""What the adapters of an ensemble's risk level share: who was visited, and what the update did to its law."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from sb3_ora.adapters.base import RiskAdapter
from sb3_ora.checks import check_choice, check_number
from sb3_ora.observations import Observations, slice_batch, stack_batches, warm_up_observations
from sb3_ora.risk.keys import DiscreteKey
from sb3_ora.risk.measures import EpistemicMeasure, left_truncated_variance, make_measure

#: Visited pairs that may wait for the next update; only reached when there is none for very long
MAX_PENDING = 10_000
#: Transitions from which a state key is fitted, even if learning starts before
MIN_WARM_UP = 100
#: Pairs evaluated in one forward pass, about
CHUNK = 1024


def alpha_grid(alpha_min: float, alpha_max: float, alpha_step: float) -> np.ndarray:
    """
    The finite set A' of the paper: steps of ``alpha_step`` from ``alpha_min``, and ``alpha_max``.

    :param alpha_min: smallest risk level, in (0, 1]
    :param alpha_max: largest risk level, in (0, 1]
    :param alpha_step: distance between the levels
    :return: the levels, ascending, (G,)
    :raises ValueError: if the bounds are out of order or out of range
    """
    check_number("alpha_min", alpha_min, 0, 1, open_low=True)
    check_number("alpha_max", alpha_max, 0, 1, open_low=True)
    check_number("alpha_step", alpha_step, 0, 1, open_low=True)
    if alpha_min > alpha_max:
        raise ValueError(f"alpha_min must not be larger than alpha_max, got {alpha_min} > {alpha_max}")
    n_steps = int(np.floor((alpha_max - alpha_min) / alpha_step + 1e-9))
    grid = np.round(alpha_min + alpha_step * np.arange(n_steps + 1), 12)
    return grid if np.isclose(grid[-1], alpha_max) else np.append(grid, alpha_max)


class Visits(NamedTuple):
    """P visited pairs and the law of their heads when they were visited."""

    observations: Observations  # (P, ...)
    actions: np.ndarray  # indices, (P,)
    keys: np.ndarray  # of the table, (P,)
    laws: np.ndarray  # (P, K)


def _joined(several: Iterable[Visits]) -> Visits:
    """All pairs, in order."""
    observations, actions, keys, laws = zip(*several, strict=True)
    return Visits(stack_batches(observations), np.concatenate(actions), np.concatenate(keys), np.concatenate(laws))


def _laws(values: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Values of all heads, (K, P, A), for the actions, (P,), in double precision, (P, K)."""
    return values[:, np.arange(len(actions)), actions].T.astype(np.float64)


class EnsembleAdapter(RiskAdapter):
    """
    Base of the adapters of alpha. It collects the visited pairs (s, a) with the law of the heads X_t(s, a), and
    after the next parameter update hands them over together with the law X_{t+1}(s, a) of the same pairs.
    Both come from the forward passes that acting needs anyway.

    :param verbose: verbosity level
    """

    watches_actions = True
    #: Whether the law after the update is wanted
    compares = True
    defaults = {  # noqa: RUF012
        "alpha_min": 0.1,
        "alpha_max": 1.0,
        "alpha_step": 0.05,
        "epistemic_measure": "cvar",
        "reference": None,
    }

    def _bind(self) -> None:
        risk = self.model.policy.risk
        if risk.table is None:
            raise ValueError(f"{type(self).__name__} needs a model with epistemic_measure, such as ORAIQN")
        self.grid = alpha_grid(*(self.options[name] for name in ("alpha_min", "alpha_max", "alpha_step")))
        risk.grid = self.grid.tolist()
        self.measure: EpistemicMeasure = make_measure(self.options["epistemic_measure"])
        self.apply_to_policy()
        reference = self.options["reference"]
        if reference is None:  # continuous observations are seldom met twice
            reference = "visit" if isinstance(risk.state_key, DiscreteKey) else "update"
        self.by_visit = check_choice("reference", reference, ("update", "visit")) == "visit"
        if self.by_visit and risk.scope != "state-action":
            raise ValueError(f"reference='visit' compares visits of one state and action: not with risk_scope={risk.scope!r}")
        self.grid_weights = self.measure.weights(self.grid, self.model.policy.n_heads).T  # (K, G)
        self.pending: deque[Visits] = deque()
        self.n_pending = 0
        self.updates_seen = self.model._n_updates
        self.alphas_used: deque[float] = deque(maxlen=1000)
        self.last_laws: np.ndarray | None = None  # (E, K)
        if self.compares and self.by_visit:
            risk.table.add_column("law", (self.model.policy.n_heads,), fill=np.nan)
            risk.table.add_column("law_updates", dtype=np.int64)

    def apply_to_policy(self) -> None:
        self.model.policy.risk.use_mean = not self.compares

    @property
    def ltv(self) -> float:
        """Left-truncated variance of the heads at the last visits, mean over the environments; NaN before."""
        return float("nan") if self.last_laws is None else float(left_truncated_variance(self.last_laws).mean())

    @property
    def loss(self) -> float:
        """Loss of the alphas that were played, mean over the pairs of the last comparison; NaN before."""
        return float("nan")

    # Collecting

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self.apply_to_policy()  # a file may come from another adapter

    def _on_rollout_start(self) -> None:
        if self.model.num_timesteps < self.model.learning_starts:
            return
        self._fit_state_key()
        self.process_pending()

    def _fit_state_key(self) -> None:
        state_key, buffer = self.model.policy.risk.state_key, self.model.replay_buffer
        if state_key is None or state_key.fitted or buffer is None:
            return
        if buffer.size() < buffer.buffer_size and buffer.size() * buffer.n_envs < MIN_WARM_UP:
            return
        state_key.fit(warm_up_observations(buffer, self.model.get_vec_normalize_env()))

    def _on_step(self) -> bool:
        acting, risk = self.model._acting, self.model.policy.risk
        if acting is None or (risk.state_key is not None and not risk.state_key.fitted):
            return True
        assert self.model._last_obs is not None
        actions = self.model._previous_actions.copy()
        laws = _laws(acting.values, actions)  # (E, K)
        self.last_laws = laws
        self.alphas_used.extend(self.model._acting_alphas)
        observations = self.model._last_obs
        if isinstance(observations, dict):  # SB3's replay buffer reshapes entries of the dict itself
            observations = dict(observations)
        if not self.compares:
            return True
        if acting.states is None:  # or a callback has changed since then what the policy does
            keys = risk.keys(observations, actions)
        else:
            keys = risk.pair_keys(acting.states, actions)
        visits = Visits(observations, actions, keys, laws)
        if self.by_visit:
            self._compare_with_last_visit(visits)
            return True
        self.pending.append(visits)
        self.n_pending += len(actions)
        while self.n_pending > MAX_PENDING:
            self.n_pending -= len(self.pending.popleft().actions)
        return True

    def _on_training_end(self) -> None:
        self.model.policy.set_training_mode(False)  # as when the pairs were visited
        self.process_pending()

    # Comparing

    def process_pending(self) -> None:
        """
        Hand over the waiting pairs, if there was an update since they were visited. The forward pass also evaluates
        the observations at which the model acts next. A second call does nothing.
        """
        if self.updates_seen == self.model._n_updates:
            return
        self.updates_seen = self.model._n_updates
        if not self.pending:
            return
        visits = self.pending[0] if len(self.pending) == 1 else _joined(self.pending)
        self.pending.clear()
        self.n_pending = 0
        table, laws = self.model.policy.risk.table, []
        chunk = max(CHUNK // self.model.n_envs, 1) * self.model.n_envs  # so that environments' levels fit
        for start in range(0, len(visits.actions), chunk):
            part = slice(start, start + chunk)
            observations, actions = slice_batch(visits.observations, part), visits.actions[part]
            values = self.model.act_ahead(observations)  # (K, P, A)
            assert values is not None
            laws.append(_laws(values, actions))
        assert table is not None
        after = laws[0] if len(laws) == 1 else np.concatenate(laws)
        for start in range(0, len(after), table.max_keys):  # so many can be in the table at once
            part = slice(start, start + table.max_keys)
            self._compare(visits.keys[part], visits.laws[part], after[part])

    def _compare_with_last_visit(self, visits: Visits) -> None:
        table = self.model.policy.risk.table
        assert table is not None
        keys, n_updates = visits.keys, self.model._n_updates
        for i in range(len(keys)):  # one after the other: two environments may visit the same pair
            row = table.rows(keys[i : i + 1])
            before, updated = table.column("law")[row], table.column("law_updates")[row] != n_updates
            table.column("law")[row], table.column("law_updates")[row] = visits.laws[i], n_updates
            if updated and not np.isnan(before).any():
                self._compare(keys[i : i + 1], before, visits.laws[i : i + 1])

    def _compare(self, keys: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
        """
        Learn from P pairs.

        :param keys: keys of the table, (P,)
        :param before: values of the heads before the update, or at the last visit, (P, K)
        :param after: values of the heads now, (P, K)
        """
        raise NotImplementedError

    def grid_losses(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """
        The signal ``l_t(alpha) = |rho_alpha(X_t) - rho_alpha(X_{t+1})|`` on the whole grid (paper, equation 2).

        :param before: values of the heads, X_t, (P, K)
        :param after: values of the heads, X_{t+1}, (P, K)
        :return: losses, (P, G)
        """
        return np.abs((np.sort(before, axis=-1) - np.sort(after, axis=-1)) @ self.grid_weights)

    def record(self) -> None:
        super().record()
        table = self.model.policy.risk.table
        assert table is not None
        values: dict[str, Any] = {"ltv": self.ltv, "loss": self.loss}
        if self.alphas_used:
            alphas = np.array(self.alphas_used)
            values |= {"alpha_mean": alphas.mean(), "alpha_min": alphas.min(), "alpha_max": alphas.max()}
        for name, value in values.items():
            if np.isfinite(value):
                self.model.logger.record(f"risk/{name}", float(value))
        self.model.logger.record("risk/keys", len(table))

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {**state, "pending": deque(), "n_pending": 0} if "pending" in state else state
