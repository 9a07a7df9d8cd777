"""The satisficing risk level: how much risk aversion a target leaves room for, when the risk measure is CVaR."""

import numpy as np

from sb3_ora.checks import check_number

TIE_TOLERANCE = 1e-9
"""A target this close to the largest atom, relative to the size of the numbers, counts as equal to it."""


def satisficing_level(x: np.ndarray, target: float | np.ndarray, alpha_min: float, alpha_max: float) -> np.ndarray:
    """
    Level ``alpha`` at which the right-tail CVaR of a loss meets a target, found in O(K log K).

    It is ``min over b >= 0 of mean_k [b (x_k - target) + 1]_+`` (DRL-ORA, theorems 5 and 6), clipped to
    ``[alpha_min, alpha_max]``. The function of ``b`` is convex and piecewise linear, with a kink at
    ``1 / (target - x_k)`` for each atom below the target; sorted, the slopes between kinks are suffix sums.

    - Mean of the loss at or above the target: ``alpha_max``.
    - Every atom below the target: ``alpha_min``.
    - Target equal to the largest atom, which m of the K atoms attain: ``m / K``.

    :param x: Loss atoms (..., K).
    :param target: Target loss (...), or one number for all.
    :param alpha_min: Lowest level allowed.
    :param alpha_max: Highest level allowed.
    :return: Levels (...), float64.
    :raises ValueError: If a number is not finite, there are no atoms, or the levels are not ``0 < min <= max <= 1``.
    """
    check_number("alpha_max", alpha_max, 0.0, 1.0, open_low=True)
    check_number("alpha_min", alpha_min, 0.0, alpha_max, open_low=True)
    x, target = np.asarray(x, dtype=np.float64), np.asarray(target, dtype=np.float64)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have at least one atom in its last dimension, got shape {x.shape}")
    if not (np.isfinite(x).all() and np.isfinite(target).all()):
        raise ValueError("x and target must be finite, got an infinite value or NaN")
    gaps = _sorted_gaps(x, target)  # (..., K)
    return np.clip(_least_loss(gaps), alpha_min, alpha_max)


def _sorted_gaps(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """``x_k - target`` in ascending order, with a tie at the largest atom made exact."""
    target = target[..., None]  # (..., 1)
    gaps = np.sort(x - target, axis=-1)
    tolerance = TIE_TOLERANCE * np.maximum(np.abs(x).max(axis=-1, keepdims=True), np.abs(target))
    tied = (np.abs(gaps[..., -1:]) <= tolerance) & (np.abs(gaps) <= tolerance)
    return np.where(tied, 0.0, gaps)


def _least_loss(gaps: np.ndarray) -> np.ndarray:
    """``min over b >= 0 of mean_k [b gap_k + 1]_+`` for ascending gaps (..., K)."""
    n_atoms = gaps.shape[-1]
    # suffix[j]: slope (times K) once the j most negative gaps have dropped out, j = 0 ... K
    suffix = np.zeros((*gaps.shape[:-1], n_atoms + 1))
    suffix[..., :-1] = np.cumsum(gaps[..., ::-1], axis=-1)[..., ::-1]
    dropped = np.argmax(suffix >= 0.0, axis=-1)[..., None]  # the first non-negative slope; suffix[K] is 0
    last_gap = np.take_along_axis(gaps, np.maximum(dropped - 1, 0), axis=-1)  # < 0 where anything dropped out
    slope = np.take_along_axis(suffix, dropped, axis=-1)
    rest = np.divide(slope, -last_gap, out=np.zeros_like(slope), where=dropped > 0)
    level = np.where(dropped > 0, (n_atoms - dropped + rest) / n_atoms, 1.0)
    return level[..., 0]
