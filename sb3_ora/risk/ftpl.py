"""Follow the perturbed leader on a grid of risk levels, one learner per key."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from sb3_ora.checks import check_flag, check_kind, check_number, check_seed
from sb3_ora.risk._common import generator_state, restore_generator
from sb3_ora.risk.table import RiskTable

_LOSS_SUM = "loss_sum"
_LOSS_COUNT = "loss_count"
_SCALE_RATE = 0.01
_TIE_TOLERANCE = 1e-12


def leader(cumulative: np.ndarray, sigma: float, alphas: np.ndarray, previous: float) -> int:
    """
    Grid argmin of ``cumulative - sigma * alpha``. Among equals the level nearest the previous one wins, then the largest.

    :param cumulative: Cumulative losses on the grid (G,).
    :param sigma: Perturbation.
    :param alphas: Grid of levels in ascending order (G,).
    :param previous: Previous level.
    :return: Grid index.
    """
    objective = cumulative - sigma * alphas  # (G,)
    lowest, highest = objective.argmin(), objective.argmax()  # min() and max() take much longer
    slack = _TIE_TOLERANCE * max(abs(objective[lowest]), abs(objective[highest]))
    tied = objective <= objective[lowest] + slack
    if np.count_nonzero(tied) == 1:
        return int(lowest)
    distance = np.where(tied, np.abs(alphas - previous), np.inf)
    return int(np.flatnonzero(distance <= distance.min() + _TIE_TOLERANCE)[-1])


def check_eta(eta: Any) -> Any:
    """
    :param eta: rate of the perturbation of :class:`FTPL`
    :return: the rate
    :raises ValueError: if it is neither a positive number nor "auto"
    """
    if not isinstance(eta, str):
        return check_number("eta", eta, 0, open_low=True)
    if eta != "auto":
        raise ValueError(f"eta must be a positive number or 'auto', got {eta!r}")
    return eta


class FTPL:
    """
    Tabular Follow The Perturbed Leader for non-convex losses (Agarwal et al. 2019; DRL-ORA, algorithm 1).

    For each key it keeps the cumulative loss vector ``L`` over the grid and the number of losses, as columns of the
    table. After each loss it draws ``sigma ~ Exp(rate eta)`` and sets the key's level to the grid argmin of
    ``L(alpha) - sigma * alpha``.

    :param alphas: Grid of risk levels in ascending order (G,).
    :param eta: Rate of the exponential perturbation, whose mean is ``1 / eta``; "auto" for ``n ** -0.5``, n being the
        number of losses of the key so far.
    :param normalize: Divide losses by a running mean of their range over the grid, so that ``eta`` does not depend on
        the scale of rewards.
    :param table: Where levels live; a new table if None.
    :param seed: Seed of the perturbations.
    :raises ValueError: If the grid is empty or not ascending, or ``eta`` is not positive.
    """

    def __init__(
        self,
        alphas: Sequence[float] | np.ndarray,
        eta: float | Literal["auto"] = 0.5,
        normalize: bool = True,
        table: RiskTable | None = None,
        seed: int | None = None,
    ):
        try:
            self.alphas = np.array(alphas, dtype=np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"alphas must be a vector of numbers, got {alphas!r}") from error
        if self.alphas.ndim != 1 or not self.alphas.size or not np.isfinite(self.alphas).all():
            raise ValueError(f"alphas must be a non-empty vector of finite numbers, got {alphas!r}")
        if np.any(np.diff(self.alphas) <= 0.0):
            raise ValueError(f"alphas must be in ascending order, got {alphas!r}")
        self.eta = check_eta(eta)
        self.normalize = check_flag("normalize", normalize)
        if table is None:
            table = RiskTable(initial=float(self.alphas[-1]))
        self.table = check_kind("table", table, RiskTable, "a RiskTable or None")
        self.table.add_column(_LOSS_SUM, (len(self.alphas),))
        self.table.add_column(_LOSS_COUNT, dtype=np.int64)
        #: Levels of the keys before the last update, for each of its pairs (P,)
        self.played = np.zeros(0)
        self.seed(seed)
        self._range_mean = 0.0
        self._range_weight = 0.0

    def seed(self, seed: int | None) -> None:
        """
        Begin the draws of the perturbations anew.

        :param seed: The seed; None for one from the operating system.
        :raises ValueError: If it is not a seed.
        """
        self._generator = np.random.default_rng(check_seed("seed", seed))

    @property
    def scale(self) -> float:
        """Running mean of the range of losses over the grid (rate 0.01, bias-corrected); 1 before the first range."""
        return self._range_mean / self._range_weight if self._range_weight > 0.0 else 1.0

    def update(self, losses: np.ndarray, keys: np.ndarray | None = None) -> np.ndarray:
        """
        Take in one loss vector per pair and move the levels of their keys, as if the pairs had come one by one.

        :param losses: Losses on the grid (P, G), or (G,) for one pair.
        :param keys: Keys of the pairs (P,), integers; they may repeat. None for key 0.
        :return: New level of each pair's key (P,), right after that pair.
        :raises FloatingPointError: If a loss is not finite; nothing changes then.
        :raises ValueError: If a shape does not fit.
        """
        losses = np.asarray(losses, dtype=np.float64)
        if losses.ndim == 1:
            losses = losses[None]
        if losses.ndim != 2 or losses.shape[1] != len(self.alphas):
            raise ValueError(f"losses must have shape (P, {len(self.alphas)}), got {losses.shape}")
        keys = np.zeros(len(losses), dtype=np.int64) if keys is None else np.atleast_1d(np.asarray(keys))
        if keys.shape != losses.shape[:1]:
            raise ValueError(f"keys must have shape {losses.shape[:1]}, got {keys.shape}")
        if np.count_nonzero(np.isfinite(losses)) < losses.size:
            raise FloatingPointError("losses must be finite, got an infinite value or NaN: have the Q-values diverged?")
        rows = self.table.rows(keys)
        self.played = self.table.alpha[rows]
        draws = self._generator.standard_exponential(len(losses)).tolist()
        return np.array([self._step(*pair) for pair in zip(rows.tolist(), losses, draws, strict=True)])

    def _step(self, row: int, losses: np.ndarray, draw: float) -> float:
        """One pair: row of its key, losses (G,), and a standard exponential draw; returns the new level."""
        if self.normalize:
            losses = losses / self._scale_with(losses)
        table = self.table
        cumulative, counts, alpha = table.column(_LOSS_SUM)[row], table.column(_LOSS_COUNT), table.alpha
        cumulative += losses  # in the table
        counts[row] += 1
        rate = counts[row] ** -0.5 if self.eta == "auto" else self.eta
        level = alpha[row] = self.alphas[leader(cumulative, draw / rate, self.alphas, alpha[row])]
        return level

    def _scale_with(self, losses: np.ndarray) -> float:
        """The running scale, once the range of these losses (G,) was taken in; equal losses everywhere do not count."""
        spread = float(losses[losses.argmax()] - losses[losses.argmin()])
        if spread > 0.0:
            self._range_mean += _SCALE_RATE * (spread - self._range_mean)
            self._range_weight += _SCALE_RATE * (1.0 - self._range_weight)
        return self.scale

    def state_dict(self) -> dict[str, Any]:
        """
        State beside the table, which whoever owns it saves.

        :return: Plain values that ``torch.load(weights_only=True)`` accepts.
        """
        return {
            "generator": generator_state(self._generator),
            "range_mean": self._range_mean,
            "range_weight": self._range_weight,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Go on from a saved state.

        :param state: As :meth:`state_dict` gives it.
        """
        restore_generator(self._generator, state["generator"])
        self._range_mean = float(state["range_mean"])
        self._range_weight = float(state["range_weight"])
