from collections.abc import Iterator
from typing import Any

import numpy as np

from sb3_ora.adapters.ensemble import EnsembleAdapter
from sb3_ora.risk.ftpl import leader
from sb3_ora.risk.measures import LowerTailCVaR
from sb3_ora.risk.satisficing import satisficing_level


def _rounds(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Split pairs into rounds without repeated rows, keeping each row's order."""
    left = np.arange(len(rows))
    while left.size:
        first = np.sort(np.unique(rows[left], return_index=True)[1])
        yield left[first]
        left = np.delete(left, first)


class RecursiveAdapter(EnsembleAdapter):
    """
    Recursive ORA: after each update the alpha of every visited pair becomes the minimiser of
    ``|rho_alpha(X_t) - rho_{alpha_t}(X_{t+1})|``, without perturbation and without a history (paper, section 4, Extension).
    For CVaR that is a satisficing level, found by a search in O(K log K) (paper, Theorems 5 and 6); for other measures
    by trying the grid. Arguments at None are the model's.

    :param alpha_min: smallest risk level
    :param alpha_max: largest risk level, and the one before anything is known
    :param alpha_step: distance between the levels of the grid; CVaR needs no grid
    :param epistemic_measure: risk measure on the heads
    :param reference: compare the laws before and after an "update", or at the key's last "visit" and now
    :param verbose: verbosity level
    """

    def __init__(
        self,
        alpha_min: float | None = None,
        alpha_max: float | None = None,
        alpha_step: float | None = None,
        epistemic_measure: Any = None,
        reference: str | None = None,
        verbose: int = 0,
    ):
        super().__init__(verbose)
        self.alpha_min, self.alpha_max, self.alpha_step = alpha_min, alpha_max, alpha_step
        self.epistemic_measure = epistemic_measure
        self.reference = reference

    def _bind(self) -> None:
        super()._bind()
        self.compared: np.ndarray | None = None  # losses of the last pairs, (P,)

    @property
    def loss(self) -> float:
        return super().loss if self.compared is None else float(self.compared.mean())

    def _compare(self, keys: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
        table = self.model.policy.risk.table
        assert table is not None
        rows = table.rows(keys)
        losses = np.empty(len(rows))
        for pairs in _rounds(rows):
            old, alphas = np.sort(before[pairs], axis=1), table.alpha[rows[pairs]]
            weights = self.measure.weights(alphas, before.shape[1])  # (P, K)
            targets = (np.sort(after[pairs], axis=1) * weights).sum(axis=1)  # (P,), on the scale of values
            losses[pairs] = np.abs((old * weights).sum(axis=1) - targets)
            table.alpha[rows[pairs]] = self._levels(old, targets, alphas)
        self.compared = losses

    def _levels(self, old: np.ndarray, targets: np.ndarray, previous: np.ndarray) -> np.ndarray:
        """
        :param old: sorted values of the heads before the update, (P, K)
        :param targets: risk-adjusted values after it, (P,)
        :param previous: alphas before, (P,)
        :return: alphas now, (P,)
        """
        if isinstance(self.measure, LowerTailCVaR):
            return satisficing_level(-old, -targets, self.grid[0], self.grid[-1])
        gaps = np.abs(old @ self.grid_weights - targets[:, None])  # (P, G)
        chosen = [leader(losses, 0.0, self.grid, alpha) for losses, alpha in zip(gaps, previous, strict=True)]
        return self.grid[chosen]
