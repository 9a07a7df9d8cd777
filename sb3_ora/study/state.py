"""How far a cell is, as its folder tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import filelock

from sb3_ora.study.definition import Cell

RECORD = "record.json"
CHECKPOINTS = "checkpoints"
#: Beside the checkpoints, what they are of
SETTINGS = "settings.json"
LOG = "cell.log"
LOCK = "cell.lock"
#: Exit status of a cell that another process runs
RUNS_ELSEWHERE = 75
#: In the order of a table
STATES = ("complete", "running", "incomplete", "missing", "changed")


def read_record(cell: Cell) -> dict[str, Any] | None:
    """
    :param cell: the cell
    :return: what it has recorded; None if it is not complete
    """
    record = read_json(cell.folder / RECORD)
    return record if record is not None and record.get("complete") else None


def read_json(path: Path) -> dict[str, Any] | None:
    """
    :param path: a file
    :return: what it says; None if there is none, or it was not written to its end
    """
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def is_complete(cell: Cell) -> bool:
    """
    :param cell: the cell
    :return: whether it is complete, with the settings it has now
    :raises ValueError: if it is complete, or has a checkpoint, with other settings
    """
    record = read_record(cell)
    settings = read_json(cell.folder / CHECKPOINTS / SETTINGS) if record is None else record["settings"]
    now = json.loads(json.dumps(cell.settings()))
    if settings is not None and settings != now:
        what = f"{cell.folder} holds {'an interrupted run' if record is None else 'results'} of other settings"
        raise ValueError(f"{what}: remove it, or choose another output ({', '.join(changes(settings, now))})")
    return record is not None


def changes(before: Any, now: Any, name: str = "") -> list[str]:
    """
    :param before: plain values
    :param now: plain values
    :param name: of the values
    :return: the entries that differ, such as "n_timesteps: 1500 -> 1600"
    """
    if before == now:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(key for key in now if key not in before)]
        values = [(before.get(key, "none"), now.get(key, "none"), f"{name}.{key}" if name else key) for key in keys]
        return [change for value in values for change in changes(*value)]
    return [f"{name.removeprefix('method.hyperparams.')}: {before} -> {now}"]


def state_of(cell: Cell) -> str:
    """
    :param cell: the cell
    :return: one of ``STATES``; a cell that failed is incomplete
    """
    try:
        if is_complete(cell):
            return "complete"
    except ValueError:
        return "changed"
    if not cell.folder.is_dir():
        return "missing"
    if not (cell.folder / LOCK).exists():
        return "incomplete"
    try:
        with filelock.FileLock(cell.folder / LOCK, timeout=0):
            return "incomplete"
    except filelock.Timeout:
        return "running"
