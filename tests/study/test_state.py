import json

import filelock
import pytest

from sb3_ora.study.definition import load_study
from sb3_ora.study.state import LOCK, is_complete, state_of
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
    with pytest.raises(ValueError, match="holds results of other settings: remove it, or choose another output"):
        is_complete(cell)
