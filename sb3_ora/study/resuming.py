"""Where a cell that was interrupted goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_ora.checkpoint import CheckpointError, RunCheckpoint, last_checkpoint
from sb3_ora.iqn.buffers import LARGE_BUFFER, observation_bytes
from sb3_ora.iqn.iqn import IQN
from sb3_ora.study.definition import Cell
from sb3_ora.study.state import CHECKPOINTS, LOCK, LOG, SETTINGS, read_json


def can_resume(cell: Cell) -> bool:
    """
    :param cell: the cell
    :return: whether there is a checkpoint of it that can be read; one of other settings is refused before, see ``is_complete``
    """
    folder = cell.folder / CHECKPOINTS
    if read_json(folder / SETTINGS) is None:
        return False
    try:
        last_checkpoint(folder)
    except CheckpointError as error:
        print(f"Not resumed: {error}")
        return False
    return True


def begin_again(folder: Path) -> None:
    """
    Remove what an interrupted run has left, but for lock and log.

    :param folder: folder of the cell
    """
    for path in folder.iterdir():
        if path.name in (LOCK, LOG):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def checkpoint_for(cell: Cell, model: BaseAlgorithm) -> RunCheckpoint | None:
    """
    :param cell: the cell
    :param model: its model
    :return: callback that writes checkpoints as often as the cell is evaluated; None for a model of another package, or
        with a replay buffer that is too large to write it out again and again
    """
    if not isinstance(model, IQN):
        return None
    if observation_bytes(model.observation_space, model.buffer_size, model.optimize_memory_usage) >= LARGE_BUFFER:
        return None
    folder = cell.folder / CHECKPOINTS
    folder.mkdir(exist_ok=True)
    temporary = folder / f"{SETTINGS}.tmp"
    temporary.write_text(json.dumps(cell.settings()))
    temporary.replace(folder / SETTINGS)
    return RunCheckpoint(cell.evaluation["freq"], folder, keep=1)


def remove_checkpoints(cell: Cell) -> None:
    """
    :param cell: a cell that is complete
    """
    shutil.rmtree(cell.folder / CHECKPOINTS, ignore_errors=True)
