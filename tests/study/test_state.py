import json
import os

import filelock
import pytest

from sb3_ora.study.definition import load_study
from sb3_ora.study.state import LOCK, changes, is_complete, state_of
from sb3_ora.zoo.files import default_hyperparameters
from tests.study.made_up import write_cell, write_study

TEXT = """
environments: {CartPole-v1: {}}
configs: {tuned: {hyperparams: {n_timesteps: 100}}}
methods:
  iqn: {name: IQN, algo: iqn}
"""


def test_states(tmp_path):
    (cell,) = write_study(tmp_path, TEXT).cells()
    assert state_of(cell) == "missing" and not is_complete(cell)
    write_cell(cell)
    record = cell.folder / "record.json"
    content = record.read_text()
    assert state_of(cell) == "complete" and is_complete(cell)
    record.unlink()
    assert state_of(cell) == "incomplete" and not is_complete(cell)
    with filelock.FileLock(cell.folder / LOCK):
        assert state_of(cell) == "running"
    assert state_of(cell) == "incomplete"
    record.write_text(json.dumps({**json.loads(content), "complete": False}))
    assert state_of(cell) == "incomplete"


def test_results_of_other_settings_are_not_taken(tmp_path):
    study = write_study(tmp_path, TEXT)
    (cell,) = study.cells()
    write_cell(cell)
    for old, new, state in (("IQN", "Another name", "complete"), ("100", "101", "changed"), ("100", "100.0", "complete")):
        study.path.write_text(TEXT.replace(old, new))
        (cell,) = load_study(study.path, output=tmp_path / "out").cells()
        assert state_of(cell) == state
    study.path.write_text(TEXT.replace("100", "101"))
    (cell,) = load_study(study.path, output=tmp_path / "out").cells()
    with pytest.raises(
        ValueError, match=r"results of other settings: remove it, or choose another output \(n_timesteps: 100 -> 101\)$"
    ):
        is_complete(cell)


def test_what_differs():
    before = {"seed": 1, "method": {"base": "zoo", "hyperparams": {"a": 1, "policy_kwargs": {"net": [8], "old": 2}}}}
    now = {"seed": 1, "method": {"base": "none", "hyperparams": {"policy_kwargs": {"net": [16], "old": 2}, "b": True}}}
    assert changes(before, now) == [
        "method.base: zoo -> none",
        "a: 1 -> none",
        "policy_kwargs.net: [8] -> [16]",
        "b: none -> True",
    ]
    assert changes(before, before) == []


def test_hyperparameters_of_the_zoo_are_settings(tmp_path, monkeypatch):
    study = write_study(tmp_path, TEXT)
    (cell,) = study.cells()
    file = tmp_path / "iqn.yml"
    monkeypatch.setattr("sb3_ora.zoo.files.default_config", lambda algo: str(file))
    texts = {
        "CartPole-v1: {gamma: 0.9}\ndefault: {gamma: 0.8}": "complete",
        "CartPole-v1: {gamma: 0.9}\ndefault: {gamma: 0.7}": "complete",  # of other environments
        "CartPole-v1: {gamma: 0.95}\ndefault: {gamma: 0.8}": "changed",
        "default: {gamma: 0.9}": "changed",
    }
    for number, (text, state) in enumerate(texts.items()):
        file.write_text(text)
        os.utime(file, ns=(number, number))
        if number == 0:
            write_cell(cell)
        assert state_of(cell) == state


@pytest.mark.parametrize(
    ("algo", "env_id", "names"),
    [
        ("ora_iqn", "CartPole-v1", ["CartPole-v1"]),
        ("ora_iqn", "Unknown-v0", ["atari", "default"]),
        ("dqn", "CartPole-v1", ["CartPole-v1"]),  # rl-zoo3's own
        ("dqn", "Unknown-v0", ["atari", "default"]),
        ("no_such", "CartPole-v1", []),
    ],
)
def test_what_the_zoo_says(algo, env_id, names):
    entries = default_hyperparameters(algo, env_id)
    assert list(entries) == names and all(entry["policy"].endswith("Policy") for entry in entries.values())


@pytest.mark.parametrize(("old", "new"), [("final_episodes: 7", "final_episodes: 8"), ("steps: 7", "steps: 8")])
def test_other_evaluations_are_other_results(tmp_path, old, new):
    text = "environments: {A-v0: {env_kwargs: {steps: 7}, tests: {small: {}}}}\nevaluation: {final_episodes: 7}\n"
    text += "configs: {tuned: {}}\nmethods: {iqn: {algo: iqn}}\n"
    study = write_study(tmp_path, text)
    write_cell(study.cells()[0])
    assert state_of(study.cells()[0]) == "complete"
    study.path.write_text(text.replace(old, new))
    (cell,) = load_study(study.path, output=tmp_path / "out").cells()
    assert state_of(cell) == "changed"


def test_a_record_that_was_not_written_to_its_end(tmp_path):
    cell = write_study(tmp_path, "environments: {A-v0: {}}\nconfigs: {tuned: {}}\nmethods: {iqn: {algo: iqn}}\n").cells()[0]
    write_cell(cell)
    record = (cell.folder / "record.json").read_text()
    for text in ("", record[: len(record) // 2]):
        (cell.folder / "record.json").write_text(text)
        assert state_of(cell) == "incomplete"
