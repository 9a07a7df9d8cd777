"""Weights from files that are not trusted."""

import io
import json
import pickle
import zipfile

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.save_util import data_to_json

from sb3_ora import IQN, ORAIQN
from sb3_ora.risk import BucketKey
from tests.tiny import ALGORITHMS, same_parameters, tiny
from tests.toy_envs import Chain, Scripted


class Evil:
    """Unpickling it leaves a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def with_entries(model, **entries):
    """The model's file, with some entries replaced."""
    buffer, changed = io.BytesIO(), io.BytesIO()
    model.save(buffer)
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(changed, "w") as target:
        for name in source.namelist():
            target.writestr(name, entries.get(name.replace(".", "_"), source.read(name)))
    changed.seek(0)
    return changed


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_in_the_file_runs(algorithm, tmp_path):
    trained = tiny(algorithm, Chain()).learn(120)
    data = json.loads(data_to_json({"seed": 1, "evil": Evil(tmp_path / "left by load")}))
    file = with_entries(trained, data=json.dumps(data))
    model = tiny(algorithm, Chain(), seed=5)
    model.load_weights(file)
    assert list(tmp_path.iterdir()) == []
    states = [one.get_parameters() for one in (trained, model)]
    assert all(th.equal(states[0]["policy"][name], value) for name, value in states[1]["policy"].items())
    asked = {"observation": np.arange(5), "deterministic": True}
    assert np.array_equal(trained.predict(**asked)[0], model.predict(**asked)[0])
    file.seek(0)
    with pytest.raises(Exception):  # noqa: B017, whatever follows: the code has run
        algorithm.load(file, verbose=0).learn(1)
    assert [path.name for path in tmp_path.iterdir()] == ["left by load"]  # the pickle was one that works


@pytest.mark.parametrize("entry", ["policy", "policy_optimizer", "adapter", "pytorch_variables"])
def test_code_in_place_of_weights(entry, tmp_path):
    buffer = io.BytesIO()
    th.save({"evil": Evil(tmp_path / "left")}, buffer)
    for evil in (buffer.getvalue(), pickle.dumps(Evil(tmp_path / "left"), protocol=2)):
        file = with_entries(tiny(IQN, Chain()), **{f"{entry}_pth": evil})
        with zipfile.ZipFile(file) as archive:
            assert evil in map(archive.read, archive.namelist())
        file.seek(0)
        with pytest.raises(ValueError, match="holds more than weights, which was not loaded"):
            tiny(IQN, Chain()).load_weights(file)
    assert list(tmp_path.iterdir()) == []


def test_other_files(tmp_path):
    model = tiny(IQN, Chain())
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    with pytest.raises(ValueError, match=r"(?s)is of a model with other networks.*size mismatch"):
        model.load_weights(with_entries(tiny(IQN, Chain(), policy_kwargs={"net_arch": [3]})))
    with pytest.raises(ValueError, match="is of a model with other networks"):
        model.load_weights(with_entries(tiny(ORAIQN, Chain())))
    assert all(th.equal(value, before[name]) for name, value in model.policy.state_dict().items())
    empty = io.BytesIO()
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("data", "{}")
    empty.seek(0)
    with pytest.raises(ValueError, match="holds no weights of a model"):
        model.load_weights(empty)
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(ValueError, match="wasn't a zip-file"):
        model.load_weights(tmp_path / "text.zip")


def test_a_file_that_is_refused_leaves_the_state_key_open():
    """So that it is fitted to what this model sees, not to what the other one saw."""

    def make(n_heads):
        return tiny(ORAIQN, Scripted((7,)), n_heads=n_heads, state_key=BucketKey(spaces.Box(-np.inf, np.inf, (2,))))

    model, other = make(4), make(3).learn(150)
    assert other.policy.risk.state_key.fitted
    file = io.BytesIO()
    other.save(file)
    with pytest.raises(ValueError, match="is of a model with other networks"):
        model.load_weights(file)
    assert not model.policy.risk.state_key.fitted
    file.seek(0)
    same = make(3)
    same.load_weights(file)
    assert same_parameters(same.policy.risk.state_key.state_dict(), other.policy.risk.state_key.state_dict())


def test_a_state_key_is_not_shared():
    key = BucketKey(spaces.Box(-np.inf, np.inf, (2,)))
    first, second = (tiny(ORAIQN, Scripted((7,)), state_key=key) for _ in range(2))
    first.learn(150)
    assert first.policy.risk.state_key.fitted
    assert not second.policy.risk.state_key.fitted and not key.fitted
