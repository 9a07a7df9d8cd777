"""State keys: map observations to integers in [0, 2**48), the rows of a risk table."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import prod
from typing import TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_ora.checks import LARGEST_SEED, check_integer, check_kind

Observations: TypeAlias = np.ndarray | dict[str, np.ndarray]

KEY_BITS = 48
"""Keys are smaller than ``2 ** KEY_BITS``, which leaves room to append an action."""

_UNBOUNDED = 1e10
_CHUNK = 256
_MASK = (1 << 64) - 1


def _splitmix64(values: np.ndarray) -> np.ndarray:
    """Finaliser of the SplitMix64 generator (Steele et al. 2014), a bijection of uint64 (...) that mixes all bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class _DigitKey:
    """
    Integer key of a vector of digits: mixed radix when it fits, a hash otherwise.

    :param sizes: Number of values of each digit (D,).
    """

    def __init__(self, sizes: Sequence[int]):
        self.exact = prod(sizes) <= 1 << KEY_BITS
        if self.exact:
            factors = [prod(sizes[position + 1 :]) for position in range(len(sizes))]
        else:
            steps = [(0x9E3779B97F4A7C15 * (position + 1)) & _MASK for position in range(len(sizes))]
            factors = (_splitmix64(np.array(steps, dtype=np.uint64)) | np.uint64(1)).tolist()
        self._factors = np.array(factors, dtype=np.uint64)

    def __call__(self, digits: np.ndarray) -> np.ndarray:
        """Digits (B, D) -> keys (B,), int64."""
        keys = digits.astype(np.uint64) @ self._factors  # modulo 2**64
        if not self.exact:
            keys = _splitmix64(keys) >> np.uint64(64 - KEY_BITS)
        return keys.astype(np.int64)


def _rows(observations: Observations, space: spaces.Space) -> np.ndarray:
    """Batch of observations of an array-valued space, flattened to (B, D)."""
    size = prod(space.shape or ())
    batch = np.asarray(observations)
    if batch.ndim == 0:  # as of a dict
        raise ValueError(f"observations must be a batch from {space}, got {type(observations).__name__}")
    if batch.size != len(batch) * size:
        raise ValueError(f"observations must be a batch (B, *{space.shape}) from {space}, got shape {batch.shape}")
    return batch.reshape(len(batch), size)


class StateKey(ABC):
    """
    Maps a batch of observations to integer keys in [0, 2**48), the same in every process.

    Keys that depend on the spread of observations take it once from :meth:`fit` and keep it from then on.
    """

    @abstractmethod
    def __call__(self, observations: Observations) -> np.ndarray:
        """
        Keys of observations.

        :param observations: A batch (B, ...), or a dict of batches.
        :return: Keys (B,), int64.
        :raises ValueError: If the observations do not fit the space.
        """

    def fit(self, observations: Observations) -> None:
        """
        Learn where observations lie; has an effect once at most, and none on keys that need nothing.

        :param observations: A batch (N, ...), or a dict of batches.
        """
        if not self.fitted:
            self._fit(observations)

    def _fit(self, observations: Observations) -> None:
        raise NotImplementedError(f"{type(self).__name__} needs fitting but does not say how")

    @property
    def fitted(self) -> bool:
        """Whether the key is final: nothing had to be fitted, or it was."""
        return True

    def state_dict(self) -> dict[str, th.Tensor]:
        """
        What :meth:`fit` learnt.

        :return: Tensors by name; empty if there is nothing.
        """
        return {}

    def load_state_dict(self, state: dict[str, th.Tensor]) -> None:
        """
        Take over what another key of the same kind has learnt.

        :param state: As :meth:`state_dict` gives it.
        :raises ValueError: If it comes from another kind of key or space.
        """
        if state:
            raise ValueError(f"state of {type(self).__name__} must be empty, got {sorted(state)}")


def _checked_array(state: dict[str, th.Tensor], name: str, size: int) -> np.ndarray:
    if name not in state or tuple(state[name].shape) != (size,):
        found = tuple(state[name].shape) if name in state else "nothing"
        raise ValueError(f"state of the key must hold {name!r} with shape {(size,)}, got {found}")
    return state[name].cpu().double().numpy().copy()


class BucketKey(StateKey):
    """
    Buckets of equal width in each dimension of a box.

    Between finite bounds, values beyond them falling into the end buckets. A dimension without useful bounds (infinite,
    or larger than 1e10) is cut between mean - 3 sd and mean + 3 sd of the observations given to :meth:`fit`, until
    then between -3 and 3.

    :param space: Observation space.
    :param n_bins: Buckets in each dimension.
    :raises TypeError: If the space is not a box.
    :raises ValueError: If ``n_bins`` is smaller than 1.
    """

    def __init__(self, space: spaces.Box, n_bins: int = 10):
        if not isinstance(space, spaces.Box):
            raise TypeError(f"space of a BucketKey must be a Box, got {space}")
        self.space = space
        self.n_bins = check_integer("n_bins", n_bins)
        low, high = (np.ravel(bound).astype(np.float64) for bound in (space.low, space.high))
        self._open = (np.abs(low) > _UNBOUNDED) | (np.abs(high) > _UNBOUNDED)  # (D,)
        self._fitted = not self._open.any()
        self._set_bounds(np.where(self._open, -3.0, low), np.where(self._open, 3.0, high))
        self._digits = _DigitKey([n_bins] * len(low))

    def __call__(self, observations: Observations) -> np.ndarray:
        values = _rows(observations, self.space)  # (B, D)
        if np.count_nonzero(np.isnan(values)):  # any() takes longer
            raise ValueError("observations must be numbers, got NaN")
        digits = (values - self._low) * self._per_unit  # in double precision
        return self._digits(np.minimum(np.maximum(digits, 0), self.n_bins - 1))  # np.clip takes longer

    def _set_bounds(self, low: np.ndarray, high: np.ndarray) -> None:
        self._low, self._high = low, high  # (D,)
        self._per_unit = self.n_bins / np.where(high > low, high - low, 1.0)  # buckets, (D,)

    def _fit(self, observations: Observations) -> None:
        values = _rows(observations, self.space).astype(np.float64)  # (N, D)
        if not len(values) or not np.isfinite(values).all():
            raise ValueError(f"observations to fit must be finite and at least one, got shape {values.shape}")
        mean, reach = values.mean(axis=0), 3.0 * values.std(axis=0)
        reach = np.where(reach > 0.0, reach, 1.0)  # a constant dimension tells nothing about its width
        self._set_bounds(np.where(self._open, mean - reach, self._low), np.where(self._open, mean + reach, self._high))
        self._fitted = True

    @property
    def fitted(self) -> bool:
        return self._fitted

    def state_dict(self) -> dict[str, th.Tensor]:
        if not (self._open.any() and self._fitted):
            return {}
        return {"low": th.from_numpy(self._low.copy()), "high": th.from_numpy(self._high.copy())}

    def load_state_dict(self, state: dict[str, th.Tensor]) -> None:
        if not self._open.any():
            super().load_state_dict(state)
        elif state:
            size = len(self._low)
            self._set_bounds(_checked_array(state, "low", size), _checked_array(state, "high", size))
            self._fitted = True


class DiscreteKey(StateKey):
    """
    Exact number of each observation of a finite space; a hash if the space has more than 2**48 members.

    :param space: Discrete, MultiDiscrete or MultiBinary observation space.
    :raises TypeError: If the space is another one.
    """

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        if isinstance(space, spaces.Discrete):
            sizes, start = np.array([space.n]), np.array([space.start])
        elif isinstance(space, spaces.MultiDiscrete):
            sizes, start = np.ravel(space.nvec), np.ravel(space.start)
        elif isinstance(space, spaces.MultiBinary):
            sizes = np.full(prod(space.shape), 2)
            start = np.zeros_like(sizes)
        else:
            raise TypeError(f"space of a DiscreteKey must be Discrete, MultiDiscrete or MultiBinary, got {space}")
        self.space = space
        self._sizes, self._start = sizes.astype(np.int64), start.astype(np.int64)
        self._digits = _DigitKey(self._sizes.tolist())

    def __call__(self, observations: Observations) -> np.ndarray:
        digits = _rows(observations, self.space).astype(np.int64) - self._start  # (B, D)
        if np.any((digits < 0) | (digits >= self._sizes)):
            raise ValueError(f"observations must lie in {self.space}, got values outside")
        return self._digits(digits)


def _leaves(observations: Observations, space: spaces.Space, path: str = "observations") -> Iterator[np.ndarray]:
    """Flattened arrays (B, D_i) of an observation in sorted key order, images scaled to [0, 1]."""
    if not isinstance(space, spaces.Dict):
        scale = 255.0 if space.dtype == np.uint8 and isinstance(space, spaces.Box) else 1.0
        yield _rows(observations, space).astype(np.float32) / np.float32(scale)
        return
    if not isinstance(observations, dict) or set(observations) != set(space.spaces):
        raise ValueError(f"{path} must be a dict with the entries {sorted(space.spaces)}")
    for name in sorted(space.spaces):
        yield from _leaves(observations[name], space[name], f"{path}[{name!r}]")


def _flat_size(space: spaces.Space) -> int:
    if isinstance(space, spaces.Dict):
        return sum(_flat_size(part) for part in space.spaces.values())
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise TypeError(f"space of a SimHashKey must be made of boxes and discrete spaces, got {space}")
    return prod(space.shape or ())


class SimHashKey(StateKey):
    """
    SimHash (Charikar 2002), as used for counting states by Tang et al. (2017): the signs of random projections of the
    flattened observation, centred on the mean seen by :meth:`fit` (zero without it). Near observations tend to share
    a key. A Dict is concatenated in sorted order of its names; 8-bit images are divided by 255.

    :param space: Observation space: boxes, discrete spaces, or a Dict of them.
    :param n_bits: Number of projections, so there are ``2 ** n_bits`` keys; at most 48.
    :param seed: Seed of the projections.
    :raises TypeError: If the space is of another kind.
    :raises ValueError: If ``n_bits`` is out of range.
    """

    def __init__(self, space: spaces.Space, n_bits: int = 32, seed: int = 0):
        self.space = space
        self.n_bits = check_integer("n_bits", n_bits, 1, KEY_BITS)
        self.seed = check_integer("seed", seed, 0, LARGEST_SEED)
        self._size = _flat_size(space)
        self._mean: np.ndarray | None = None
        self._projections: np.ndarray | None = None

    def __getstate__(self) -> dict:
        return {**vars(self), "_projections": None}

    def _projection_matrix(self) -> np.ndarray:
        if self._projections is None:
            # RandomState, because its stream is fixed for good: projections are remade after loading, not saved
            normal = np.random.RandomState(self.seed).standard_normal((self._size, self.n_bits))
            self._projections = normal.astype(np.float32)
        return self._projections

    def __call__(self, observations: Observations) -> np.ndarray:
        flat = self._flatten(observations)  # (B, D)
        if self._mean is not None:
            flat = flat - self._mean
        bits = (flat @ self._projection_matrix()) > 0.0  # (B, n_bits)
        return bits.astype(np.int64) @ (1 << np.arange(self.n_bits, dtype=np.int64))

    def _flatten(self, observations: Observations) -> np.ndarray:
        flat = np.concatenate(list(_leaves(observations, self.space)), axis=1)
        if np.isnan(flat).any():
            raise ValueError("observations must be numbers, got NaN")
        return flat

    def _fit(self, observations: Observations) -> None:
        batches = list(_chunks(observations))
        if not batches:
            raise ValueError("observations to fit must be at least one, got none")
        sums = [self._flatten(batch).sum(axis=0, dtype=np.float64) for batch in batches]
        count = sum(_batch_size(batch) for batch in batches)
        self._mean = (np.sum(sums, axis=0) / count).astype(np.float32)

    @property
    def fitted(self) -> bool:
        return self._mean is not None

    def state_dict(self) -> dict[str, th.Tensor]:
        return {} if self._mean is None else {"mean": th.from_numpy(self._mean.copy())}

    def load_state_dict(self, state: dict[str, th.Tensor]) -> None:
        if state:
            self._mean = _checked_array(state, "mean", self._size).astype(np.float32)


def _batch_size(observations: Observations) -> int:
    if isinstance(observations, dict):
        return _batch_size(next(iter(observations.values())))
    return len(observations)


def _slice(observations: Observations, part: slice) -> Observations:
    if isinstance(observations, dict):
        return {name: _slice(value, part) for name, value in observations.items()}  # type: ignore[misc]
    return observations[part]


def _chunks(observations: Observations) -> Iterator[Observations]:
    """A large batch in pieces, so that images are never held as floats all at once."""
    for start in range(0, _batch_size(observations), _CHUNK):
        yield _slice(observations, slice(start, start + _CHUNK))


def make_state_key(spec: str | StateKey | None, space: spaces.Space) -> StateKey:
    """
    State key for an observation space.

    :param spec: "bucket" (Box), "discrete" (Discrete, MultiDiscrete, MultiBinary), "simhash" (Box, Dict, MultiDiscrete,
        MultiBinary), or a key, which is returned as it is. None picks: buckets for vectors, exact numbers for discrete
        spaces, SimHash for images, other boxes and dicts.
    :param space: Observation space.
    :return: The key.
    :raises ValueError: If the name is unknown or does not suit the space.
    :raises TypeError: If it is neither a name nor a key.
    """
    if isinstance(spec, StateKey):
        return spec
    check_kind("space", space, spaces.Space, "a space of Gymnasium")
    suited = _suited_keys(space)
    if spec is None:
        spec = suited[0]
    if not isinstance(spec, str):
        raise TypeError(f"state_key must be None, a name or a StateKey object, got {spec!r}")
    if spec not in suited:
        raise ValueError(f"state_key for {space} must be one of {suited} or a StateKey object, got {spec!r}")
    classes: dict[str, type] = {"bucket": BucketKey, "discrete": DiscreteKey, "simhash": SimHashKey}
    return classes[spec](space)


def _suited_keys(space: spaces.Space) -> list[str]:
    """Names of the keys that make sense for a space, the default first."""
    if isinstance(space, spaces.Discrete):
        return ["discrete"]
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return ["discrete", "simhash"]
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return ["bucket", "simhash"]
    if isinstance(space, spaces.Box) and space.dtype != np.uint8:
        return ["simhash", "bucket"]
    if isinstance(space, spaces.Box | spaces.Dict):
        return ["simhash"]
    raise ValueError(f"state_key has no choice for {space}: pass a StateKey object")
