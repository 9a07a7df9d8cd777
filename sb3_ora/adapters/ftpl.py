from typing import Any

import numpy as np

from sb3_ora.adapters.ensemble import EnsembleAdapter
from sb3_ora.checks import check_flag
from sb3_ora.risk.ftpl import FTPL


class FTPLAdapter(EnsembleAdapter):
    """
    Online epistemic risk adaptation by Follow The Perturbed Leader: after each update, the alpha of every visited
    pair becomes the minimiser over the grid of its cumulative losses minus sigma * alpha, sigma ~ Exp(eta)
    (paper, Algorithm 1, lines 10 and 11). Arguments at None are the model's.

    :param alpha_min: smallest risk level
    :param alpha_max: largest risk level, and the one before anything is known
    :param alpha_step: distance between the levels of the grid
    :param eta: rate of the perturbation, or "auto" for n^(-1/2) at a key's n-th loss
    :param normalize_loss: whether to divide the losses by a running scale of their range
    :param epistemic_measure: risk measure on the heads
    :param reference: compare the laws before and after an "update", or at the key's last "visit" and now
    :param verbose: verbosity level
    """

    defaults = {**EnsembleAdapter.defaults, "eta": 0.5, "normalize_loss": True}  # noqa: RUF012

    def __init__(
        self,
        alpha_min: float | None = None,
        alpha_max: float | None = None,
        alpha_step: float | None = None,
        eta: float | str | None = None,
        normalize_loss: bool | None = None,
        epistemic_measure: Any = None,
        reference: str | None = None,
        verbose: int = 0,
    ):
        super().__init__(verbose)
        self.alpha_min, self.alpha_max, self.alpha_step = alpha_min, alpha_max, alpha_step
        self.eta, self.normalize_loss = eta, normalize_loss
        self.epistemic_measure = epistemic_measure
        self.reference = reference

    def _bind(self) -> None:
        super()._bind()
        check_flag("normalize_loss", self.options["normalize_loss"])
        options, table = self.options, self.model.policy.risk.table
        self.ftpl = FTPL(self.grid, options["eta"], options["normalize_loss"], table, self.model.seed)
        self.compared: tuple[np.ndarray, np.ndarray] | None = None  # losses of the last pairs (P, G), and their alphas (P,)

    @property
    def loss(self) -> float:
        if self.compared is None:
            return super().loss
        losses, alphas = self.compared
        played = np.abs(self.grid - alphas[:, None]).argmin(axis=1)
        return float(losses[np.arange(len(losses)), played].mean())

    def seed(self, seed: int) -> None:
        self.ftpl.seed(seed)

    def _compare(self, keys: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
        losses = self.grid_losses(before, after)  # (P, G)
        self.ftpl.update(losses, keys)
        self.compared = losses, self.ftpl.played

    def learned_state(self) -> dict[str, Any]:
        return self.ftpl.state_dict()

    def load_learned_state(self, state: dict[str, Any]) -> None:
        self.ftpl.load_state_dict(state)
