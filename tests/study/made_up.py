"""Cells that look complete, with numbers that were made up."""

import json

import numpy as np
import pandas as pd

from sb3_ora.study.definition import load_study


def write_study(folder, text):
    """Write a YAML file and load it; it runs in the folder ``out``."""
    path = folder / "made_up.yml"
    path.write_text(text)
    return load_study(path, output=folder / "out")


def write_cell(cell, level=100.0, n_timesteps=1000, outcomes=("",), risk=True, references=None, episodes=None, **record):
    """
    Complete a cell: training returns rise to ``level``, test returns lie around it.

    :param outcomes: of the test episodes, in turn
    :param episodes: training episodes (step, return) to write instead
    """
    rng = np.random.default_rng(cell.seed)
    cell.folder.mkdir(parents=True)
    if episodes is None:
        steps = np.arange(20, n_timesteps + 1, 20)
        episodes = np.stack([steps, level * steps / n_timesteps + rng.normal(0, 5, len(steps))], axis=1)
    frame = pd.DataFrame(episodes, columns=["step", "return"]).assign(length=20)
    frame.to_csv(cell.folder / "episodes.csv", index=False)
    rows = [
        [test, number, level + rng.normal(), 20, outcomes[number % len(outcomes)]]
        for test in cell.environment.tests
        for number in range(4)
    ]
    final = pd.DataFrame(rows, columns=["test", "episode", "return", "length", "outcome"])
    final.to_csv(cell.folder / "final.csv", index=False)
    if risk and cell.method.algo == "ora_iqn":
        steps = np.linspace(10, n_timesteps, 50)
        part = steps / n_timesteps
        rows = np.stack([steps, 1 - part / 2, part, np.exp(-part), part / 10], axis=1)
        rows[0, 3] = np.nan
        pd.DataFrame(rows, columns=["step", "alpha", "adapted", "ltv", "changed"]).to_csv(
            cell.folder / "risk.csv", index=False
        )
    content = {
        "complete": True,
        "settings": cell.settings(),
        "hyperparams": {name: str(value) for name, value in cell.method.hyperparams.items()},
        "n_timesteps": n_timesteps,
        "references": dict.fromkeys(cell.environment.tests, references or {}),
        "train_seconds": 10.0,
        "peak_memory_mb": 400.0,
        "versions": {"sb3_ora": "0"},
        "machine": {"cpu": "made up", "device": "cpu"},
        **record,
    }
    (cell.folder / "record.json").write_text(json.dumps(content))
