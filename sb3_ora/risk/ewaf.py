"""Exponentially weighted average forecasting over a finite set of arms, and the published ART controller."""

import math
from collections import deque
from typing import Any

import numpy as np
import torch as th

from sb3_ora.checks import check_choice, check_integer, check_number, check_seed
from sb3_ora.risk._common import generator_state, restore_generator

_LARGEST_WEIGHT = 1e100


def tail_variance(quantiles: np.ndarray, scale: float) -> np.ndarray:
    """
    Spread of the lower half of a return distribution about its median, ``scale * sum_i (F_i - F_{N/2})^2``.

    Right-truncated variance of Liu et al. (2022) over N quantiles: ``scale = 2 / N``. Their published code uses
    N = 16 and ``scale = 1 / (2 N)``.

    :param quantiles: Quantiles at the fractions 1/N, ..., 1/2, the last standing in for the median (..., N/2).
    :param scale: Factor of the sum.
    :return: Tail variance (...), in squared units of return.
    """
    return scale * np.sum((quantiles - quantiles[..., -1:]) ** 2, axis=-1)


class EWAF:
    """
    Bandit over arms with probabilities ``p(d) ~ exp(w(d))`` and importance-weighted updates
    ``w(d) += learning_rate * feedback / p(d)`` of the arm played (Moskovitz et al. 2021; DRL-ORA, section 3).

    :param n_arms: Number of arms.
    :param learning_rate: Step size.
    :param decay: Share of all weights that is forgotten before each update, in [0, 1).
    :param floor: Least probability used in the importance weight, in (0, 1].
    :param seed: Seed of :meth:`sample`.
    :raises ValueError: If an argument is out of its range.
    """

    def __init__(self, n_arms: int, learning_rate: float, decay: float = 0.0, floor: float = 1e-2, seed: int | None = None):
        self.n_arms = check_integer("n_arms", n_arms)
        self.learning_rate = check_number("learning_rate", learning_rate, 0, open_low=True)
        self.decay = check_number("decay", decay, 0, 1, open_high=True)
        self.floor = check_number("floor", floor, 0, 1, open_low=True)
        self.weights = np.zeros(n_arms)
        self.seed(seed)

    @property
    def probabilities(self) -> np.ndarray:
        """Probability of each arm (n_arms,)."""
        unnormalised = np.exp(self.weights - self.weights.max())
        return unnormalised / unnormalised.sum()

    @property
    def best(self) -> int:
        """Arm with the largest weight, the first of equals."""
        return int(np.argmax(self.weights))

    def sample(self, size: int | None = None) -> Any:
        """
        Draw arms.

        :param size: Number of independent draws; None for a single arm.
        :return: An arm, or arms (size,).
        """
        arms = self._generator.choice(self.n_arms, size=size, p=self.probabilities)
        return int(arms) if size is None else arms

    def seed(self, seed: int | None) -> None:
        """
        Begin the draws of :meth:`sample` anew.

        :param seed: The seed; None for one from the operating system.
        :raises ValueError: If it is not a seed.
        """
        self._generator = np.random.default_rng(check_seed("seed", seed))

    def update(self, arm: int, feedback: float, probability: float | None = None) -> None:
        """
        Credit feedback to the arm that was played.

        :param arm: The arm, in [0, n_arms).
        :param feedback: Its feedback, larger is better.
        :param probability: With which the arm was drawn, in [0, 1]; None for its probability now.
        :raises ValueError: If there is no such arm, the feedback is not finite, or the probability is out of range.
        """
        if not 0 <= arm < self.n_arms:
            raise ValueError(f"arm must lie in [0, {self.n_arms}), got {arm}")
        feedback = check_number("feedback", feedback)
        if probability is None:
            probability = float(self.probabilities[arm])
        check_number("probability", probability, 0, 1)
        self.weights *= 1.0 - self.decay
        raised = self.weights[arm] + self.learning_rate * feedback / max(probability, self.floor)
        self.weights[arm] = min(max(raised, -_LARGEST_WEIGHT), _LARGEST_WEIGHT)

    def state_dict(self) -> dict[str, Any]:
        """
        Weights and generator.

        :return: Values that ``torch.load(weights_only=True)`` accepts.
        """
        return {"weights": th.from_numpy(self.weights.copy()), "generator": generator_state(self._generator)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Go on from a saved state.

        :param state: As :meth:`state_dict` gives it.
        :raises ValueError: If it was saved for another number of arms.
        """
        weights = state["weights"].cpu().double().numpy().copy()
        if weights.shape != (self.n_arms,):
            raise ValueError(f"weights must have shape {(self.n_arms,)}, got {weights.shape}")
        self.weights = weights
        restore_generator(self._generator, state["generator"])


class PublishedARTController:
    """
    Risk level controller of the published adaptive risk tendency code (Liu et al. 2022).

    Two weights start at -3 (averse) and +3 (neutral); the level is their softmax-weighted mean of ``level_min`` and
    ``level_max``. From the second step on in the simulation script, from the first in the flight script, both move in
    opposite directions by ``learning_rate`` times the mean of the last ``window`` falls of the windowed sum of tail variances.

    :param level_min: Level of the averse arm.
    :param level_max: Level of the neutral arm.
    :param learning_rate: Step size.
    :param window: Length of both windows, in steps.
    :param script: Which of the published scripts to follow, "simulation" or "flight".
    :raises ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        level_min: float = 0.1,
        level_max: float = 1.0,
        learning_rate: float = 2.0,
        window: int = 5,
        script: str = "simulation",
    ):
        self.level_max = check_number("level_max", level_max)
        self.level_min = check_number("level_min", level_min)
        if self.level_min > self.level_max:
            raise ValueError(f"level_min must not be larger than level_max, got {level_min} > {level_max}")
        self.learning_rate = check_number("learning_rate", learning_rate, 0, open_low=True)
        self.window = check_integer("window", window)
        self.script = check_choice("script", script, ("simulation", "flight"))
        self.reset()

    def reset(self) -> None:
        """Start a new episode."""
        self._weight_gap = 6.0  # neutral minus averse
        self._started = self.script == "flight"
        self._last_sum = 0.0
        self._variances: deque[float] = deque(maxlen=self.window)
        self._falls: deque[float] = deque(maxlen=self.window)

    @property
    def level(self) -> float:
        """Risk level for the next step."""
        neutral = 0.5 * (1.0 + math.tanh(0.5 * self._weight_gap))  # logistic function without overflow
        return self.level_min + (self.level_max - self.level_min) * neutral

    def update(self, tcv: float) -> float:
        """
        Take in the tail variance of the step just made.

        :param tcv: Tail variance of the action taken, see :func:`tail_variance`.
        :return: Risk level for the next step.
        :raises ValueError: If ``tcv`` is not finite.
        """
        self._variances.append(check_number("tcv", tcv))
        if self._started:
            current = math.fsum(self._variances)
            self._falls.append(self._last_sum - current)
            self._last_sum = current
            moved = self._weight_gap + 2.0 * self.learning_rate * math.fsum(self._falls) / len(self._falls)
            self._weight_gap = min(max(moved, -_LARGEST_WEIGHT), _LARGEST_WEIGHT)
        self._started = True  # the simulation script never stores the first sum: the second step falls from 0
        return self.level

    def state_dict(self) -> dict[str, Any]:
        """
        State within the episode.

        :return: Plain values that ``torch.load(weights_only=True)`` accepts.
        """
        return {
            "weight_gap": self._weight_gap,
            "started": self._started,
            "last_sum": self._last_sum,
            "variances": list(self._variances),
            "falls": list(self._falls),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Go on from a saved state.

        :param state: As :meth:`state_dict` gives it.
        """
        self._weight_gap = float(state["weight_gap"])
        self._started = bool(state["started"])
        self._last_sum = float(state["last_sum"])
        self._variances = deque(state["variances"], maxlen=self.window)
        self._falls = deque(state["falls"], maxlen=self.window)
