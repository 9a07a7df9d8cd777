"""A bounded table of risk levels, one per key, with further columns for whoever adapts them."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th

from sb3_ora.checks import check_integer, check_number

_FIRST_CAPACITY = 64
_ALPHA = "alpha"
_KEYS = "keys"


@dataclass
class _Column:
    """Values of one column, (capacity, *shape), and what an unseen key starts from."""

    data: np.ndarray
    fill: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape[1:]

    def resize(self, capacity: int) -> None:
        grown = np.empty((capacity, *self.shape), dtype=self.data.dtype)
        kept = min(capacity, len(self.data))
        grown[:kept] = self.data[:kept]
        self.data = grown


def _key_list(keys: np.ndarray) -> list[int]:
    if isinstance(keys, np.ndarray) and keys.ndim == 1 and keys.dtype == np.int64:
        return keys.tolist()
    keys = np.atleast_1d(np.asarray(keys))
    if keys.ndim > 1:
        raise ValueError(f"keys must be a vector, got shape {keys.shape}")
    if keys.dtype.kind not in "iu" and keys.size:
        raise TypeError(f"keys must be integers, got dtype {keys.dtype}")
    return keys.astype(np.int64).tolist()


class RiskTable:
    """
    Risk level of each integer key, in bounded memory: when full, the least recently updated key is dropped.

    Storage is a few arrays indexed by row number, so that whole batches are read and written at once:
    ``rows = table.rows(keys)``, then ``table.alpha[rows] = levels``. Arrays grow geometrically up to ``max_keys`` rows.

    :param initial: Level of a key that has not been seen.
    :param max_keys: Most keys kept.
    :raises ValueError: If ``max_keys`` is smaller than 1 or ``initial`` is not finite.
    """

    def __init__(self, initial: float, max_keys: int = 100_000):
        self.initial = check_number("initial", initial)
        self.max_keys = check_integer("max_keys", max_keys)
        self._row_of: OrderedDict[int, int] = OrderedDict()  # least recently updated key first
        self._columns: dict[str, _Column] = {}
        self._capacity = min(_FIRST_CAPACITY, self.max_keys)
        self.add_column(_ALPHA, fill=self.initial)

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, key: int) -> bool:
        return int(key) in self._row_of

    def keys(self) -> np.ndarray:
        """
        Keys in the table.

        :return: Keys (len,), int64, from the least to the most recently updated.
        """
        return np.fromiter(self._row_of, dtype=np.int64, count=len(self))

    @property
    def alpha(self) -> np.ndarray:
        """Risk levels by row number (capacity,); fetch it again after :meth:`rows`, which may move it."""
        return self._columns[_ALPHA].data

    def lookup(self, keys: np.ndarray) -> np.ndarray:
        """
        Risk levels of keys; changes nothing.

        :param keys: Keys (B,), integers.
        :return: Levels (B,), float64; ``initial`` for keys not in the table.
        """
        rows, alpha = map(self._row_of.get, _key_list(keys)), self.alpha
        return np.array([self.initial if row is None else alpha[row] for row in rows], dtype=np.float64)

    def rows(self, keys: np.ndarray) -> np.ndarray:
        """
        Row numbers of keys, which become the most recently updated ones in the order given.

        Unseen keys are inserted with the initial level and each column's fill. No key named in a call is dropped by it.

        :param keys: Keys (P,), integers; they may repeat.
        :return: Row numbers (P,), int64.
        :raises ValueError: If there are more distinct keys than ``max_keys``.
        """
        wanted = _key_list(keys)
        if len(wanted) > self.max_keys and len(set(wanted)) > self.max_keys:
            raise ValueError(f"keys must hold at most max_keys={self.max_keys} distinct keys, got {len(set(wanted))}")
        for key in wanted:
            if key in self._row_of:
                self._row_of.move_to_end(key)
        return np.array([self._touch(key) for key in wanted], dtype=np.int64)

    def _touch(self, key: int) -> int:
        row = self._row_of.get(key)
        if row is None:
            row = self._row_of[key] = self._free_row()
            for column in self._columns.values():
                column.data[row] = column.fill
        else:
            self._row_of.move_to_end(key)
        return row

    def _free_row(self) -> int:
        if len(self) == self.max_keys:
            return self._row_of.popitem(last=False)[1]
        if len(self) == self._capacity:
            self._resize(min(2 * self._capacity, self.max_keys))
        return len(self)

    def _resize(self, capacity: int) -> None:
        self._capacity = capacity
        for column in self._columns.values():
            column.resize(capacity)

    def add_column(self, name: str, shape: tuple[int, ...] = (), dtype: Any = np.float64, fill: Any = 0) -> None:
        """
        Keep another array for each key. If the column exists with this shape, its values stay and only ``fill`` is set.

        :param name: Name of the column.
        :param shape: Shape of one key's entry.
        :param dtype: NumPy type of the entries.
        :param fill: What unseen keys start from.
        :raises ValueError: If the column exists with another shape, or the name is taken by the keys themselves.
        """
        if name == _KEYS:
            raise ValueError(f"name of a column cannot be {_KEYS!r}: it stands for the keys themselves")
        if name in self._columns:
            if self._columns[name].shape != tuple(shape):
                raise ValueError(f"column {name!r} has shape {self._columns[name].shape}, got {tuple(shape)}")
            self._columns[name].fill = fill
        else:
            self._columns[name] = _Column(np.full((self._capacity, *shape), fill, dtype=dtype), fill)

    def column(self, name: str) -> np.ndarray:
        """
        Values of a column by row number; fetch it again after :meth:`rows`, which may move it.

        :param name: Name of the column.
        :return: Values, ``(capacity, *shape)``.
        :raises KeyError: If there is no such column.
        """
        return self._columns[name].data

    def state_dict(self) -> dict[str, th.Tensor]:
        """
        Contents as tensors.

        :return: ``keys`` (len,), ``alpha`` (len,) and every other column ``(len, *shape)``, least recently updated first.
        """
        rows = np.fromiter(self._row_of.values(), dtype=np.int64, count=len(self))
        columns = {name: th.from_numpy(column.data[rows]) for name, column in self._columns.items()}
        return {_KEYS: th.from_numpy(self.keys()), **columns}

    def load_state_dict(self, state: dict[str, th.Tensor]) -> None:
        """
        Replace the contents. Of more than ``max_keys`` keys the most recent ones are kept; columns this table lacks
        are added, columns the state lacks start from their fill.

        :param state: As :meth:`state_dict` gives it.
        :raises ValueError: If keys or levels are missing or repeated, or a shape does not fit; nothing changes then.
        """
        arrays = {name: tensor.detach().cpu().numpy()[-self.max_keys :] for name, tensor in state.items()}
        self._check_state(arrays)
        keys = arrays.pop(_KEYS).tolist()
        self._row_of = OrderedDict((key, row) for row, key in enumerate(keys))
        self._resize(max(min(_FIRST_CAPACITY, self.max_keys), len(keys)))
        for name, values in arrays.items():
            self.add_column(name, values.shape[1:], values.dtype, self._fill(name))
        for name, column in self._columns.items():
            column.data[: len(keys)] = arrays.get(name, column.fill)

    def _fill(self, name: str) -> Any:
        return self._columns[name].fill if name in self._columns else 0

    def _check_state(self, arrays: dict[str, np.ndarray]) -> None:
        if _KEYS not in arrays or _ALPHA not in arrays:
            raise ValueError(f"state must hold {_KEYS!r} and {_ALPHA!r}, got {sorted(arrays)}")
        keys = _key_list(arrays[_KEYS])
        if len(set(keys)) != len(keys):
            raise ValueError("state must not repeat a key")
        for name, values in arrays.items():
            if len(values) != len(keys):
                raise ValueError(f"state entry {name!r} must have one row for each of {len(keys)} keys, got {len(values)}")
            if name in self._columns and values.shape[1:] != self._columns[name].shape:
                raise ValueError(
                    f"state entry {name!r} must have rows of shape {self._columns[name].shape}, got {values.shape[1:]}"
                )
