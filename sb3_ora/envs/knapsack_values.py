"""What a knapsack can hold: optimum, greedy packing, and the expected values of the online problem."""

import numpy as np


def best_value(weights: np.ndarray, values: np.ndarray, limits: np.ndarray, capacity: int) -> float:
    """
    The bounded knapsack problem by dynamic programming over loads; copies of an item go in packs of 1, 2, 4, ...

    :param weights: weight of each item, integers of at least 1, (N,)
    :param values: value of each item, at least 0, (N,)
    :param limits: how often each item may be packed, (N,)
    :param capacity: largest total weight
    :return: largest total value
    """
    best = np.zeros(capacity + 1, dtype=np.int64)  # for each load
    for weight, value, limit in zip(weights.tolist(), values.tolist(), limits.tolist(), strict=True):
        left, pack = min(limit, capacity // weight), 1
        while left > 0:
            pack = min(pack, left)
            heavier = best[: capacity + 1 - pack * weight] + pack * value
            best[pack * weight :] = np.maximum(best[pack * weight :], heavier)
            left, pack = left - pack, 2 * pack
    return float(best[-1])


def greedy_value(weights: np.ndarray, values: np.ndarray, limits: np.ndarray, capacity: int) -> float:
    """
    :param weights: weight of each item, integers of at least 1, (N,)
    :param values: value of each item, at least 0, (N,)
    :param limits: how often each item may be packed, (N,)
    :param capacity: largest total weight
    :return: total value of packing by value per weight, each item as often as it fits
    """
    total, left = 0, capacity
    for item in np.argsort(-values / weights, kind="stable"):
        count = min(int(limits[item]), left // int(weights[item]))
        total, left = total + count * int(values[item]), left - count * int(weights[item])
    return float(total)


def online_value(
    weights: np.ndarray, values: np.ndarray, odds: np.ndarray, capacity: int, n_steps: int, selective: bool
) -> float:
    """
    Expected total value when one random item is offered at each step, by backward induction.

    :param weights: weight of each item, integers of at least 1, (N,)
    :param values: value of each item, at least 0, (N,)
    :param odds: probability with which each item is the one offered, (N,)
    :param capacity: largest total weight
    :param n_steps: number of items offered
    :param selective: whether the policy is the best one, or takes whatever fits
    :return: expected total value from an empty knapsack
    """
    loads = np.arange(capacity + 1)[:, None] + weights  # after taking each item, (C + 1, N)
    fits = loads <= capacity
    loads = np.where(fits, loads, 0)
    future = np.zeros(capacity + 1)  # expected value from each load on
    for _ in range(n_steps):
        left, taken = future[:, None], values + future[loads]  # (C + 1, 1), (C + 1, N)
        chosen = np.maximum(left, taken) if selective else taken
        future = np.where(fits, chosen, left) @ odds
    return float(future[0])
