"""Reads the complete cells of a study from the disk into tables, and says what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sb3_ora.study.definition import Cell, Study
from sb3_ora.study.state import read_record, state_of
from sb3_ora.study.statistics import area_under_curve, on_grid, running_mean

#: Points of a curve
GRID = 200
#: From so many seeds on, a difference is a claim
CLAIM = 5


class Run(NamedTuple):
    """What one complete cell has left."""

    cell: Cell
    record: dict[str, Any]
    episodes: pd.DataFrame  #: step, return, length
    final: pd.DataFrame  #: test, episode, return, length, outcome
    risk: pd.DataFrame | None  #: step, alpha, adapted, ltv

    @property
    def label(self) -> str:
        """Label of the method."""
        return self.cell.method.label

    @property
    def env(self) -> str:
        """The environment."""
        return self.cell.environment.env_id


class Curves(NamedTuple):
    """Curves of the seeds of one method on a common grid."""

    steps: np.ndarray  # (T,)
    values: np.ndarray  # (seeds, T)


def read_runs(study: Study, only: Collection[str] = ()) -> tuple[list[Run], list[str]]:
    """
    :param study: the study
    :param only: labels, algorithms and environments to keep, see :meth:`Study.cells`
    :return: its complete runs, and notes on those that are not, or that differ from one another
    """
    runs: list[Run] = []
    states: Counter[tuple[str, str, str]] = Counter()
    for cell in study.cells(only):
        state = state_of(cell)
        states[(cell.environment.env_id, cell.method.name, state)] += 1
        if state == "complete":
            runs.append(read_run(cell))
    notes = [
        f"{env}, {name}: {count} of the {len(study.seeds)} runs {'are' if count > 1 else 'is'} left out, {state}."
        for (env, name, state), count in states.items()
        if state != "complete"
    ]
    return runs, notes + differences(runs)


def read_run(cell: Cell) -> Run:
    """
    :param cell: a complete cell
    :return: what it has left
    """
    record = read_record(cell)
    assert record is not None
    episodes = pd.read_csv(cell.folder / "episodes.csv")
    final = pd.read_csv(cell.folder / "final.csv", dtype={"test": str, "outcome": str}, keep_default_na=False)
    risk = cell.folder / "risk.csv"
    return Run(cell, record, episodes, final, pd.read_csv(risk) if risk.exists() else None)


def differences(runs: Collection[Run]) -> list[str]:
    """
    :param runs: the runs
    :return: notes on seeds of one method that differ in hyperparameters, versions or machine, on lengths that differ within
        an environment, and on methods with few seeds
    """
    notes = []
    for env in dict.fromkeys(run.env for run in runs):
        here = [run for run in runs if run.env == env]
        lengths = sorted({run.record["n_timesteps"] for run in here})
        if len(lengths) > 1:
            notes.append(f"{env}: runs have unequal lengths, {', '.join(f'{length:,}' for length in lengths)} steps.")
        for label in dict.fromkeys(run.label for run in here):
            same = [run for run in here if run.label == label]
            name = same[0].cell.method.name
            for what in ("hyperparams", "versions", "machine"):
                kinds = {str(sorted(run.record[what].items())) for run in same}
                if len(kinds) > 1:
                    notes.append(f"{env}, {name}: the seeds have {len(kinds)} different {what}.")
            if len(same) < CLAIM:
                notes.append(f"{env}, {name}: {len(same)} seed{'s' * (len(same) > 1)}, not a claim.")
    return notes


def training_curve(run: Run, grid: np.ndarray, window: int) -> np.ndarray:
    """
    :param run: the run
    :param grid: steps, (T,)
    :param window: episodes to average over
    :return: mean return of the last ``window`` training episodes at each step, up to the end of the run, (T,)
    """
    if run.episodes.empty:
        return np.full(len(grid), np.nan)
    by_step = running_mean(run.episodes["return"].to_numpy(), window)
    steps = np.append(run.episodes["step"], max(run.record["n_timesteps"], run.episodes["step"].iloc[-1]))
    return on_grid(steps, np.append(by_step, by_step[-1]), grid)


def risk_curve(run: Run, grid: np.ndarray, column: str) -> np.ndarray:
    """
    :param run: the run
    :param grid: steps, (T,)
    :param column: "alpha", "adapted", "ltv" or "changed"
    :return: the quantity at each step, (T,); NaN where the run does not know it
    """
    known = pd.DataFrame() if run.risk is None or column not in run.risk else run.risk.dropna(subset=[column])
    if known.empty:
        return np.full(len(grid), np.nan)
    return on_grid(known["step"].to_numpy(), known[column].to_numpy(), grid)


def step_grid(runs: Collection[Run]) -> np.ndarray:
    """
    :param runs: runs of one environment
    :return: even steps up to the end of the longest run, (T,)
    """
    return np.linspace(0, max(run.record["n_timesteps"] for run in runs), GRID + 1)[1:]


def curve_table(runs: Collection[Run], window: int) -> pd.DataFrame:
    """
    :param runs: runs of one environment
    :param window: episodes that curves average over
    :return: the training curve of every run, in a column named by its method and seed, on T steps, (T, 1 + runs)
    """
    grid = step_grid(runs)
    return pd.DataFrame({"step": grid} | {f"{run.label} {run.cell.seed}": training_curve(run, grid, window) for run in runs})


def outcome_percent(run: Run, test: str, outcome: str) -> float:
    """
    :param run: the run
    :param test: name of a test
    :param outcome: an outcome
    :return: how many of the test's episodes end with it, in percent
    """
    return 100 * float((run.final.loc[run.final["test"] == test, "outcome"] == outcome).mean())


def seed_table(runs: Collection[Run], window: int, outcomes: Mapping[str, str] | None = None) -> pd.DataFrame:
    """
    :param runs: the runs
    :param window: episodes that curves average over
    :param outcomes: outcomes to count in each test, by name of the column
    :return: one row for each run: the height of its training curve, its mean return in each test, its outcomes in percent,
        and its cost
    """
    rows = []
    for run in runs:
        grid = np.linspace(0, run.record["n_timesteps"], GRID + 1)[1:]
        tests = run.final.groupby("test", sort=False)["return"].mean()
        rows.append(
            {
                "environment": run.env,
                "method": run.label,
                "name": run.cell.method.name,
                "algo": run.cell.method.algo,
                "seed": run.cell.seed,
                "n_timesteps": run.record["n_timesteps"],
                "training": area_under_curve(training_curve(run, grid, window)),
                **{f"test: {test}": value for test, value in tests.items()},
                **{
                    f"{name}: {test}": outcome_percent(run, test, it)
                    for name, it in (outcomes or {}).items()
                    for test in tests.index
                },
                "train_seconds": run.record["train_seconds"],
                "peak_memory_mb": run.record["peak_memory_mb"],
            }
        )
    return pd.DataFrame(rows)
