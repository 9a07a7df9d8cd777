"""Files of checkpoints: written completely or not at all, and read with a reason where they cannot be."""

from __future__ import annotations

import io
import json
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

#: Version of the files; those of another version are refused
FORMAT = 3


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, and why."""


class Saved(NamedTuple):
    """What a checkpoint holds."""

    path: Path
    meta: dict[str, Any]
    model: bytes
    replay_buffer: Any
    run: bytes


def write_checkpoint(path: Path, model: OffPolicyAlgorithm, meta: dict[str, Any], run: bytes) -> None:
    """
    Write everything to a temporary file, make sure that it is on the disk, and give it its name.

    :param path: file of the checkpoint
    :param model: the model in training
    :param meta: what the file says about itself
    :param run: state of the rest of the run
    """
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr("meta.json", json.dumps(meta, indent=2))
                buffer = io.BytesIO()
                model.save(buffer)
                archive.writestr("model.zip", buffer.getvalue())
                with archive.open("replay_buffer.pkl", "w", force_zip64=True) as entry:
                    pickle.dump(model.replay_buffer, entry, protocol=pickle.HIGHEST_PROTOCOL)
                archive.writestr("run.pkl", run)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):  # so that the new name is on the disk, too
        folder = os.open(path.parent, os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_checkpoint(path: str | Path) -> Saved:
    """
    :param path: file of a checkpoint
    :return: what is in it
    :raises CheckpointError: if it is empty, truncated, not a checkpoint, or of another version
    """
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if "meta.json" not in archive.namelist():
                with path.open("rb") as file:
                    if b"meta.json" in file.read(64):  # the directory found is that of the model inside
                        raise CheckpointError(f"{path} is truncated")
                raise CheckpointError(f"{path} is not a checkpoint of a run (if it is a model, use load)")
            meta = json.loads(archive.read("meta.json"))
            if not isinstance(meta, dict) or not isinstance(meta.get("format"), int):
                raise CheckpointError(f"{path} is not a checkpoint of a run")
            if meta["format"] != FORMAT:
                raise CheckpointError(
                    f"{path} has format {meta['format']}, written by sb3_ora {meta.get('sb3_ora')}; "
                    f"this version reads format {FORMAT}"
                )
            broken = archive.testzip()
            if broken is not None:
                raise CheckpointError(f"{path} is damaged: {broken} has a wrong checksum")
            with archive.open("replay_buffer.pkl") as entry:
                replay_buffer = pickle.load(entry)
            return Saved(path, meta, archive.read("model.zip"), replay_buffer, archive.read("run.pkl"))
    except CheckpointError:
        raise
    except (zipfile.BadZipFile, EOFError, KeyError, pickle.UnpicklingError, json.JSONDecodeError) as error:
        what = "is empty" if path.stat().st_size == 0 else f"is truncated or not a checkpoint ({error})"
        raise CheckpointError(f"{path} {what}") from error


def checkpoints_in(folder: str | Path) -> list[Path]:
    """
    :param folder: where :class:`RunCheckpoint` writes
    :return: its files, the last one first
    """
    return sorted(Path(folder).glob("run_*_steps.zip"), key=steps_of, reverse=True)


def steps_of(path: Path) -> int:
    """
    :param path: file of a checkpoint
    :return: the step in its name
    """
    return int(path.name.split("_")[1])


def last_checkpoint(path: str | Path) -> Saved:
    """
    :param path: a checkpoint, or a folder of them
    :return: the last one that can be read; a warning tells of those that cannot
    :raises CheckpointError: if there is none
    """
    path = Path(path)
    if path.is_file():
        return read_checkpoint(path)
    errors = []
    for file in checkpoints_in(path):
        try:
            return read_checkpoint(file)
        except CheckpointError as error:
            errors.append(str(error))
            warnings.warn(f"{error}: trying the checkpoint before it", stacklevel=2)
    reasons = "".join(f"\n  {error}" for error in errors) or f" (no file {path / 'run_..._steps.zip'})"
    raise CheckpointError(f"no checkpoint to resume from in {str(path)!r}{reasons}")
