"""The knapsack problems of or-gym 0.5, Knapsack-v0 to v3, as Gymnasium environments of their own."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_ora.checks import check_choice, check_flag, check_integer, check_no_rendering
from sb3_ora.envs.knapsack_values import best_value, greedy_value, online_value

UNBOUNDED, BINARY, BOUNDED, ONLINE = range(4)
HIGHEST = 99  # of weights, from 1, and values, from 0
LARGEST = 1_000_000  # capacity; the optimum then takes 0.3 to 2 s, and in version 3 43 s and 2 GB
#: Items shown in an episode of the online problem
ONLINE_STEPS = 50


class KnapsackEnv(gym.Env):
    """
    Put items into a knapsack, one at each step. The reward is the value of the item; an item that does not fit, or is
    used up, pays nothing and ends the episode, as does a knapsack that is exactly full. Source: or-gym 0.5
    (https://arxiv.org/abs/2008.06319); ids ``or_gym/Knapsack-v0`` to ``v3``.

    ======= ============================================= =========================================
    version items                                         actions
    ======= ============================================= =========================================
    0       each as often as it fits (unbounded)          one for each item
    1       each once (0-1 knapsack)                      one for each item
    2       each up to its limit of 1 ... 9 (bounded)     one for each item
    3       50 random ones in turn, in proportion to      0 leaves the item, 1 takes it
            their limits, which are not used up (online)
    ======= ============================================= =========================================

    Weights are uniform on 1 ... 99 and values on 0 ... 99. The state is or-gym's: for version 1 and 2 the three rows
    weights, values and remaining limits, (3, N + 1), with capacity, load and 0 in the last column; for version 3
    load, item, its weight and its value, (4,); for version 0 weights, values and load, (2N + 1,), or, flat, the rows
    weights and values with capacity and load in the last column, (2N + 2,).

    At an episode's end ``info`` holds the ``value`` packed, the ``optimal_value``, the ``greedy_value`` and the relative
    ``gap`` to the optimum. (The optimum of version 3 is an expectation: a lucky episode has a gap below 0.)

    :param version: which problem, 0 to 3
    :param n_items: number of items N
    :param max_weight: capacity of the knapsack, up to a million
    :param instance_seed: seed of the items, which are the same in every episode and every environment with this seed
    :param randomize: draw new items at each reset instead (from the environment's own seed); as in or-gym, how often
        items come in version 3 still depends on the limits of the first ones
    :param obs_mode: "dict" for entries ``state`` and ``action_mask``, (A,); "flat" for the flattened state alone
    :param normalize: give the state in float32, divided by its upper bounds, instead of integers
    :param render_mode: has no effect, as there is nothing to see; rl-zoo3's enjoy gives one
    :raises ValueError: if an argument is out of range
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012, as Gymnasium declares it
    action_space: spaces.Discrete
    _optimal: float | None
    _greedy: float | None

    def __init__(
        self,
        version: int = BINARY,
        n_items: int = 50,
        max_weight: int = 200,
        instance_seed: int = 0,
        randomize: bool = False,
        obs_mode: str = "dict",
        normalize: bool = True,
        render_mode: str | None = None,
    ):
        check_no_rendering(type(self).__name__, render_mode)
        self.version = check_integer("version", version, 0)
        if version > ONLINE:
            raise ValueError(f"version must be 0 (unbounded), 1 (0-1), 2 (bounded) or 3 (online), got {version!r}")
        self.n_items = check_integer("n_items", n_items)
        self.max_weight = check_integer("max_weight", max_weight, 1, LARGEST)
        self.instance_seed = check_integer("instance_seed", instance_seed, 0)
        self.randomize, self.normalize = check_flag("randomize", randomize), check_flag("normalize", normalize)
        self.obs_mode = check_choice("obs_mode", obs_mode, ("dict", "flat"))
        self._high = self._bounds()
        matrix = obs_mode == "dict" and version in (BINARY, BOUNDED)
        self._shape = (3, n_items + 1) if matrix else self._high.shape
        self._draw_items(np.random.default_rng(self.instance_seed))
        if version == ONLINE:
            self._item_odds = np.cumsum(self._first_limits) / self._first_limits.sum()
        self._restart()
        self.action_space = spaces.Discrete(2 if version == ONLINE else n_items)
        high = np.ones(self._shape, np.float32) if normalize else self._high.reshape(self._shape).astype(np.int32)
        state_space = spaces.Box(np.zeros_like(high), high, dtype=high.dtype)
        mask_space = spaces.Box(0, 1, (int(self.action_space.n),), np.int8)
        self.observation_space: spaces.Space = state_space
        if obs_mode == "dict":
            self.observation_space = spaces.Dict({"action_mask": mask_space, "state": state_space})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """
        Empty the knapsack.

        :param seed: seed of the items of version 3, and of all items where they are drawn anew
        :param options: not used
        :return: the first observation and an empty dict
        """
        super().reset(seed=seed)
        if self.randomize:
            self._draw_items(self.np_random)
        self._restart()
        self._show_item()
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """
        :param action: the item to pack; in version 3, whether to pack the one shown
        :return: observation, value packed, whether the episode ends, False, and how good the episode was at its end
        :raises ValueError: for an action outside the action space
        """
        if not self.action_space.contains(action):
            raise ValueError(f"action must be an integer in [0, {self.action_space.n - 1}], got {action!r}")
        packed = self._pack(int(action))
        self.value += packed or 0
        terminated = packed is None or self.load == self.max_weight
        if self.version == ONLINE:
            self._show_item()
            self._steps += 1
            terminated = terminated or self._steps >= ONLINE_STEPS
        return self._observation(), float(packed or 0), terminated, False, self._summary() if terminated else {}

    def action_masks(self) -> np.ndarray:
        """
        :return: which actions are valid now, as sb3-contrib's MaskablePPO asks for them, bool (A,)
        """
        if self.version == ONLINE:
            return np.array([True, bool(self._fits(self.current_item))])
        return self._fits(slice(None)) & (self.item_limits > 0)

    def optimal_value(self) -> float:
        """
        The largest value of a whole episode with the present items, by dynamic programming; for version 3 the expected
        value of the best policy, which knows how likely each item is and how many are still to come.

        :return: the value
        """
        if self._optimal is None:
            if self.version == ONLINE:
                self._optimal = self._online_value(selective=True)
            else:
                self._optimal = best_value(self.item_weights, self.item_values, self._first_limits, self.max_weight)
        return self._optimal

    def greedy_value(self) -> float:
        """
        The value of an episode that packs the items with the highest value by weight first; for version 3 the expected
        value of taking whatever fits.

        :return: the value
        """
        if self._greedy is None:
            if self.version == ONLINE:
                self._greedy = self._online_value(selective=False)
            else:
                self._greedy = greedy_value(self.item_weights, self.item_values, self._first_limits, self.max_weight)
        return self._greedy

    def _online_value(self, selective: bool) -> float:
        odds = np.diff(self._item_odds, prepend=0.0)
        return online_value(self.item_weights, self.item_values, odds, self.max_weight, ONLINE_STEPS, selective)

    def _draw_items(self, rng: np.random.Generator) -> None:
        n = self.n_items
        self.item_weights = rng.integers(1, HIGHEST + 1, size=n)
        self.item_values = rng.integers(0, HIGHEST + 1, size=n)
        if self.version == UNBOUNDED:
            self._first_limits = self.max_weight // self.item_weights
        elif self.version == BINARY:
            self._first_limits = np.ones(n, dtype=np.int64)
        else:
            self._first_limits = rng.integers(1, 10, size=n)
        if self.version != ONLINE:
            self._empty = self._scaled(self._arranged(self.item_weights, self.item_values, self._first_limits, 0))
        self._optimal = self._greedy = None

    def _restart(self) -> None:
        self.item_limits = self._first_limits.copy()
        self.load = self.value = self._steps = self.current_item = 0
        if self.version != ONLINE:
            self._state = self._empty.copy()

    def _show_item(self) -> None:
        if self.version == ONLINE:
            self.current_item = int(np.searchsorted(self._item_odds, self.np_random.random(), side="right"))

    def _fits(self, items: int | slice) -> Any:
        return self.item_weights[items] + self.load <= self.max_weight

    def _pack(self, action: int) -> int | None:
        """
        :param action: as for :meth:`step`
        :return: the value packed; None for an invalid action
        """
        if self.version == ONLINE and action == 0:
            return 0
        item = self.current_item if self.version == ONLINE else action
        if not self._fits(item) or (self.version in (BINARY, BOUNDED) and self.item_limits[item] == 0):
            return None
        self.load += int(self.item_weights[item])
        if self.version in (BINARY, BOUNDED):
            self.item_limits[item] -= 1
        if self.version != ONLINE:
            self._write(item)
        return int(self.item_values[item])

    def _arranged(self, weights: np.ndarray, values: np.ndarray, limits: np.ndarray, load: int) -> np.ndarray:
        """State of version 0 to 2, or its bounds, from arrays (N,); flattened."""
        if self.version == UNBOUNDED:
            if self.obs_mode == "dict":
                return np.concatenate([weights, values, [load]])
            return np.concatenate([weights, [self.max_weight], values, [load]])
        return np.concatenate([weights, [self.max_weight], values, [load], limits, [0]])

    def _bounds(self) -> np.ndarray:
        """Upper bounds of the flattened state, at least 1."""
        if self.version == ONLINE:
            return np.maximum([self.max_weight, self.n_items - 1, HIGHEST, HIGHEST], 1)
        highest, most = np.full(self.n_items, HIGHEST), 9 if self.version == BOUNDED else 1
        return np.maximum(self._arranged(highest, highest, np.full(self.n_items, most), self.max_weight), 1)

    def _scaled(self, state: np.ndarray) -> np.ndarray:
        return (state / self._high).astype(np.float32) if self.normalize else state.astype(np.int32)

    def _write(self, item: int) -> None:
        """Note in the state that an item was packed."""
        n = self.n_items
        if self.version == UNBOUNDED:
            cells = [(2 * n if self.obs_mode == "dict" else 2 * n + 1, self.load)]
        else:
            cells = [(2 * n + 1, self.load), (2 * n + 2 + item, self.item_limits[item])]
        for cell, number in cells:
            self._state[cell] = number / self._high[cell] if self.normalize else number

    def _observation(self) -> Any:
        if self.version == ONLINE:
            item = self.current_item
            state = self._scaled(np.array([self.load, item, self.item_weights[item], self.item_values[item]]))
        else:
            state = self._state.copy()
        if self.obs_mode == "flat":
            return state
        return {"action_mask": self.action_masks().astype(np.int8), "state": state.reshape(self._shape)}

    def _summary(self) -> dict[str, float]:
        optimum = self.optimal_value()
        gap = (optimum - self.value) / optimum if optimum > 0 else 0.0
        return {"value": float(self.value), "optimal_value": optimum, "greedy_value": self.greedy_value(), "gap": gap}
