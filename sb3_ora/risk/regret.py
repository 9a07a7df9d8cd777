"""Regret of a sequence of choices."""

import numpy as np


def regret(losses: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """
    Cumulative regret against the best fixed choice in hindsight (DRL-ORA, section 4, on a grid of levels).

    :param losses: Loss of every grid point in every round (T, G).
    :param chosen: Grid index chosen in every round (T,), integers.
    :return: For t = 1 ... T, the loss of the first t choices minus the least loss of a fixed grid point over
        the first t rounds, shape (T,).
    :raises ValueError: If the shapes do not match or ``chosen`` leaves the grid.
    :raises TypeError: If ``chosen`` does not hold integers.
    """
    losses, chosen = np.asarray(losses, dtype=np.float64), np.asarray(chosen)
    if losses.ndim != 2 or chosen.shape != losses.shape[:1]:
        raise ValueError(f"losses must be (T, G) and chosen (T,), got shapes {losses.shape} and {chosen.shape}")
    if chosen.dtype.kind not in "iu":
        raise TypeError(f"chosen must hold integer grid indices, got dtype {chosen.dtype}")
    if np.any((chosen < 0) | (chosen >= losses.shape[1])):
        raise ValueError(f"chosen must lie in [0, {losses.shape[1]}), got values outside")
    paid = np.take_along_axis(losses, chosen[:, None], axis=1)[:, 0]
    return np.cumsum(paid) - np.cumsum(losses, axis=0).min(axis=1)
