import copy
import pickle
import time
from collections import OrderedDict

import numpy as np
import pytest
import torch as th

from sb3_ora.risk import RiskTable


class Model:
    """What a bounded table should do, one key at a time: a plain ordered dictionary."""

    def __init__(self, initial, max_keys):
        self.initial, self.max_keys, self.alpha = initial, max_keys, OrderedDict()

    def write(self, keys, levels):
        for key in keys:
            if key in self.alpha:
                self.alpha.move_to_end(key)
        for key, level in zip(keys, levels, strict=True):
            if key not in self.alpha and len(self.alpha) == self.max_keys:
                self.alpha.popitem(last=False)
            self.alpha[key] = level
            self.alpha.move_to_end(key)


@pytest.mark.parametrize("max_keys", [1, 5, 63, 64, 200])
def test_random_operations_against_an_ordered_dictionary(max_keys, through_file):
    rng = np.random.default_rng(max_keys)
    table, model = RiskTable(1.0, max_keys), Model(1.0, max_keys)
    for step in range(600):
        keys = rng.integers(0, 3 * max_keys, size=rng.integers(0, max_keys + 1))
        levels = rng.random(len(keys))
        if step % 2:
            expected = [model.alpha.get(key, 1.0) for key in keys.tolist()]
            assert table.lookup(keys).tolist() == expected
        else:
            rows = table.rows(keys)
            for row, level in zip(rows, levels, strict=True):  # of repeated keys, the last one counts
                table.alpha[row] = level
            model.write(keys.tolist(), levels.tolist())
        if step % 50 == 0:
            state, table = table.state_dict(), RiskTable(1.0, max_keys)
            table.load_state_dict(through_file(state))
        assert table.keys().tolist() == list(model.alpha)
        assert len(table) == len(model.alpha) <= max_keys
    assert table.lookup(table.keys()).tolist() == list(model.alpha.values())


def test_lookup_changes_nothing():
    table = RiskTable(0.7, max_keys=2)
    table.alpha[table.rows(np.array([5, 6]))] = [0.1, 0.2]
    assert table.lookup(np.array([5, 99, 6, 5])).tolist() == [0.1, 0.7, 0.2, 0.1]
    assert table.lookup(np.zeros(0, dtype=np.int64)).shape == (0,)
    assert table.lookup(np.array([5])).dtype == np.float64
    assert table.keys().tolist() == [5, 6]
    assert 5 in table
    assert np.int64(6) in table
    assert 99 not in table


def test_rows_may_repeat_and_hold_any_int64():
    table = RiskTable(1.0)
    keys = np.array([-(2**63), 2**63 - 1, 0, -(2**63)])
    rows = table.rows(keys)
    assert rows[0] == rows[3]
    assert len(set(rows.tolist())) == 3
    assert table.keys().tolist() == [2**63 - 1, 0, -(2**63)]


def test_a_call_never_drops_a_key_it_names():
    table = RiskTable(1.0, max_keys=2)
    table.alpha[table.rows(np.array([1, 2]))] = [0.1, 0.2]
    table.rows(np.array([3, 1]))  # 3 is new: 2 goes, although 1 is older
    assert table.lookup(np.array([1, 2, 3])).tolist() == [0.1, 1.0, 1.0]
    with pytest.raises(ValueError, match="at most max_keys=2 distinct keys, got 3"):
        table.rows(np.array([1, 2, 3]))
    assert table.rows(np.array([4, 4, 4, 5])).shape == (4,)


def test_a_dropped_key_starts_again_and_its_row_is_used_again():
    table = RiskTable(1.0, max_keys=1)
    table.add_column("count", dtype=np.int64, fill=-1)
    row = table.rows(np.array([1]))
    table.alpha[row], table.column("count")[row] = 0.3, 9
    assert table.rows(np.array([2])) == row
    assert table.alpha[row] == 1.0
    assert table.column("count")[row] == -1


def test_growth_keeps_contents_and_a_small_table_is_small():
    table = RiskTable(1.0, max_keys=10_000)
    table.add_column("law", (3,), fill=np.nan)
    assert table.column("law").nbytes < 10_000
    capacities = set()
    for key in range(3000):
        row = table.rows(np.array([key]))
        table.alpha[row], table.column("law")[row] = key, [key, 2 * key, 3 * key]
        capacities.add(len(table.alpha))
        assert len(table.column("law")) == len(table.alpha)
    assert len(capacities) < 10  # geometric growth
    keys = np.arange(3000)
    assert np.array_equal(table.lookup(keys), keys)
    assert np.array_equal(table.column("law")[table.rows(keys)], keys[:, None] * np.array([1, 2, 3]))
    table.rows(np.arange(3000, 10_000))
    assert len(table.alpha) == len(table) == 10_000
    assert np.isnan(table.column("law")[table.rows(np.array([9999]))]).all()


def test_columns():
    table = RiskTable(1.0)
    table.rows(np.array([1]))
    table.add_column("sum", (2,), fill=0.5)
    table.add_column("flag", dtype=bool)
    rows = table.rows(np.array([1, 2]))
    assert table.column("sum")[rows].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert table.column("flag").dtype == bool
    table.column("sum")[rows] = 7.0
    table.add_column("sum", (2,), fill=0.25)  # keeps what is there
    assert table.column("sum")[table.rows(np.array([1, 3]))].tolist() == [[7.0, 7.0], [0.25, 0.25]]
    with pytest.raises(ValueError, match=r"column 'sum' has shape \(2,\), got \(3,\)"):
        table.add_column("sum", (3,))
    with pytest.raises(ValueError, match="name of a column cannot be 'keys'"):
        table.add_column("keys")
    with pytest.raises(KeyError):
        table.column("law")


def filled(n_keys, max_keys=100):
    table = RiskTable(1.0, max_keys)
    table.add_column("law", (2,), dtype=np.float32, fill=np.nan)
    table.add_column("count", dtype=np.int64)
    rows = table.rows(np.arange(n_keys))
    table.alpha[rows] = np.arange(n_keys) / 100
    table.column("law")[rows] = np.arange(2 * n_keys).reshape(-1, 2)
    table.column("count")[rows] = np.arange(n_keys)
    table.rows(np.array([0]))  # now the most recent
    return table


def test_state_round_trip(through_file):
    table = filled(80)
    state = through_file(table.state_dict())
    assert {name: value.dtype for name, value in state.items()} == {
        "keys": th.int64,
        "alpha": th.float64,
        "law": th.float32,
        "count": th.int64,
    }
    bare = RiskTable(1.0, 100)
    bare.load_state_dict(state)
    assert bare.keys().tolist() == [*range(1, 80), 0]
    assert bare.lookup(np.arange(81)).tolist() == [*(np.arange(80) / 100), 1.0]
    rows = bare.rows(np.arange(80))
    assert bare.column("law")[rows].tolist() == np.arange(160.0).reshape(-1, 2).tolist()
    assert bare.column("count")[rows].tolist() == list(range(80))
    for name, value in bare.state_dict().items():
        assert value.dtype == state[name].dtype


def test_a_column_added_after_loading_brings_its_fill():
    table = RiskTable(1.0, 100)
    table.load_state_dict(filled(3).state_dict())
    table.add_column("law", (2,), fill=np.nan)
    assert np.isnan(table.column("law")[table.rows(np.array([50]))]).all()
    assert table.column("law")[table.rows(np.array([1]))].tolist() == [[2.0, 3.0]]


def test_a_larger_state_keeps_its_most_recent_keys():
    table = RiskTable(1.0, max_keys=3)
    table.load_state_dict(filled(80).state_dict())
    assert table.keys().tolist() == [78, 79, 0]
    assert table.lookup(np.array([78, 79, 0, 77])).tolist() == [0.78, 0.79, 0.0, 1.0]
    table.rows(np.array([500]))
    assert table.keys().tolist() == [79, 0, 500]


def test_loading_replaces_what_was_there():
    table = filled(5)
    table.add_column("extra", fill=4.0)
    table.load_state_dict(filled(2).state_dict())
    assert table.keys().tolist() == [1, 0]
    assert table.column("extra")[table.rows(np.array([0, 1]))].tolist() == [4.0, 4.0]
    empty = RiskTable(0.5).state_dict()
    table.load_state_dict(empty)
    assert len(table) == 0
    assert table.lookup(np.array([0])).tolist() == [1.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": None}, "state must hold 'keys' and 'alpha'"),
        ({"alpha": None}, "state must hold 'keys' and 'alpha'"),
        ({"law": th.zeros(5, 3)}, r"entry 'law' must have rows of shape \(2,\), got \(3,\)"),
        ({"count": th.zeros(4)}, "entry 'count' must have one row for each of 5 keys, got 4"),
        ({"keys": th.zeros(5, dtype=th.int64)}, "must not repeat a key"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, message):
    table = filled(4)
    before = table.state_dict()
    state = {name: value for name, value in {**filled(5).state_dict(), **change}.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        table.load_state_dict(state)
    after = table.state_dict()
    assert before.keys() == after.keys()
    assert all(th.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda table: pickle.loads(pickle.dumps(table))])
def test_copies_are_independent(duplicate):
    table = filled(70)
    twin = duplicate(table)
    assert twin.keys().tolist() == table.keys().tolist()
    twin.alpha[twin.rows(np.array([3, 1000]))] = 0.9
    assert table.lookup(np.array([3, 1000])).tolist() == [0.03, 1.0]
    assert twin.lookup(np.array([3, 1000])).tolist() == [0.9, 0.9]


def test_a_saved_state_does_not_follow_later_updates():
    table = filled(3)
    state = table.state_dict()
    table.alpha[table.rows(np.array([1]))] = 0.5
    assert state["alpha"].tolist() == [0.01, 0.02, 0.0]


def test_lookup_costs_the_same_in_a_large_table():
    def seconds(n_keys):
        table = RiskTable(1.0, 200_000)
        table.rows(np.arange(n_keys))
        keys = np.random.default_rng(0).integers(0, n_keys, 100)
        best = np.inf
        for _ in range(30):
            start = time.perf_counter()
            table.lookup(keys)
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(200_000) < 20 * seconds(200)  # a search through all keys would be 1000 times slower


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="max_keys"):
        RiskTable(1.0, 0)
    with pytest.raises(ValueError, match="initial"):
        RiskTable(float("nan"))
    table = RiskTable(1.0)
    with pytest.raises(TypeError, match="keys must be integers"):
        table.rows(np.array([0.5]))
    with pytest.raises(TypeError, match="keys must be integers"):
        table.lookup(np.array([0.5]))
    with pytest.raises(ValueError, match="keys must be a vector"):
        table.lookup(np.zeros((2, 2), dtype=np.int64))
