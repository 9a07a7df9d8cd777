"""How far a cell is, as its folder tells."""

from __future__ import annotations

import json
from typing import Any

import filelock

from sb3_ora.study.definition import Cell

RECORD = "record.json"
LOG = "cell.log"
LOCK = "cell.lock"
#: In the order of a table
STATES = ("complete", "running", "incomplete", "missing", "changed")


def read_record(cell: Cell) -> dict[str, Any] | None:
    """
    :param cell: the cell
    :return: what it has recorded; None if it is not complete
    """
    path = cell.folder / RECORD
    record = json.loads(path.read_text()) if path.is_file() else {}
    return record if record.get("complete") else None


def is_complete(cell: Cell) -> bool:
    """
    :param cell: the cell
    :return: whether it is complete, with the settings it has now
    :raises ValueError: if it is complete with other settings
    """
    record = read_record(cell)
    if record is None:
        return False
    if record["settings"] != json.loads(json.dumps(cell.settings())):
        raise ValueError(f"{cell.folder} holds results of other settings: remove it, or choose another output")
    return True


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
