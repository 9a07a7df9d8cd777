"""
Checkpoints from which a killed run goes on as if it had never stopped.

SB3's ``CheckpointCallback`` saves a model, from which training can start again, warm. :class:`RunCheckpoint` saves the
whole run: model, optimizer, replay buffer, risk adapter, environments, callbacks, logger and all random generators.
:func:`resume` continues it. On the CPU the continued run has the same weights, evaluations and monitor rows, bit for bit.
"""

from __future__ import annotations

import importlib
import io
import operator
import os
import warnings
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import torch as th
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, EventCallback
from stable_baselines3.common.logger import Logger, configure
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback

from sb3_ora.callbacks import walk_callbacks
from sb3_ora.checkpoint.files import (
    FORMAT,
    CheckpointError,
    Saved,
    checkpoints_in,
    last_checkpoint,
    steps_of,
    write_checkpoint,
)
from sb3_ora.checkpoint.run import NOT_COPIED, Run
from sb3_ora.checks import check_integer, check_path, check_verbose
from sb3_ora.iqn.acting import ActingAlgorithm

#: File in the folder of checkpoints that the run holds locked
LOCK = "run.lock"
#: Arguments of ``learn`` that a resumed run may change
LEARN = ("log_interval", "tb_log_name", "progress_bar")


class RunCheckpoint(BaseCallback):
    """
    Writes a checkpoint of the whole run now and then; :func:`resume` continues from the last one.

    A checkpoint is taken between two rollouts, just before actions are chosen again. It is written to a temporary file
    that replaces nothing before it is complete. If the disk is full, training goes on with a warning, and the
    checkpoints before are kept. A folder is for one run: that of a run that goes on, or with later checkpoints of another
    one, is refused. If NaN or an infinite number ends the training, the model from before is saved beside them.

    :param save_freq: environment steps between two checkpoints, in all environments together
    :param folder: where the files go; None for "checkpoints" in the run folder of rl-zoo3
    :param keep: how many of the last checkpoints stay
    :param verbose: 1 for a line at each checkpoint
    :raises ValueError: if an argument is out of range, the folder is that of another run, or the model is not one of this
        package
    """

    model: ActingAlgorithm

    def __init__(self, save_freq: int, folder: str | Path | None = None, keep: int = 2, verbose: int = 0):
        super().__init__(check_verbose(verbose))
        self.save_freq = check_integer("save_freq", save_freq, 1)
        self.keep = check_integer("keep", keep, 1)
        self.folder = None if folder is None else check_path("folder", folder)
        self.last_saved = 0
        self.warned = False
        self._lock: filelock.BaseFileLock | None = None
        self._resuming: Saved | None = None

    def _init_callback(self) -> None:
        if not isinstance(self.model, ActingAlgorithm):
            raise ValueError(f"RunCheckpoint is for the algorithms of sb3_ora, not for {type(self.model).__name__}")
        learner = type(self.model)
        try:
            _find_class(learner.__module__, learner.__qualname__)
        except (ImportError, AttributeError) as error:
            raise ValueError(
                f"a run of {learner.__module__}.{learner.__qualname__} cannot be resumed, as another process does not find "
                f"the class ({error}): define it in a module, outside of functions"
            ) from error
        if self.folder is None:
            raise ValueError("folder=None of RunCheckpoint is for rl-zoo3 only: give the folder for the checkpoints")
        Path(self.folder).mkdir(parents=True, exist_ok=True)

    def _on_step(self) -> bool:
        return True

    def _run(self) -> Run:
        return Run(self.model, self.locals["callback"])  # the outermost one, given to all

    def _on_training_start(self) -> None:
        if isinstance(self.parent, EventCallback):
            raise ValueError(
                f"a RunCheckpoint inside a {type(self.parent).__name__} would not see rollouts begin, which is when it saves: "
                "give it to learn(callback=...) beside it, in a list; save_freq says how often it saves"
            )
        self._lock_folder()
        if self._resuming is None:
            self.last_saved = self.num_timesteps

    def _lock_folder(self) -> None:
        """
        :raises CheckpointError: if another run writes to the folder, or has left checkpoints that would be taken for later
            ones of this run
        """
        assert self.folder is not None
        if self._lock is None:
            lock = filelock.FileLock(Path(self.folder) / LOCK)
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout as error:
                raise CheckpointError(
                    f"folder={self.folder!r} is that of another run, which goes on: give another one"
                ) from error
            except (OSError, NotImplementedError) as error:  # a file system without locks, or a full one
                warnings.warn(f"folder={self.folder!r} cannot be locked ({error}): no other run may use it", stacklevel=2)
            self._lock = lock
        later = self._later_checkpoints()
        if later and (self._resuming is None or not self._resuming.path.parent.samefile(self.folder)):
            self._unlock_folder()
            raise CheckpointError(
                f"folder={self.folder!r} holds {later[0].name} of another run, and this one is at step "
                f"{self.model.num_timesteps}: resume that run, give another folder, or remove its checkpoints"
            )

    def _later_checkpoints(self) -> list[Path]:
        assert self.folder is not None
        return [path for path in checkpoints_in(self.folder) if steps_of(path) > self.model.num_timesteps]

    def _unlock_folder(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _on_training_end(self) -> None:
        self._unlock_folder()

    def on_training_error(self, error: BaseException) -> None:
        """
        Called by ``learn`` when an error ends the training. After NaN or an infinite number the model, which is the one
        from before, is saved as ``model_..._steps_before_error.zip`` beside the checkpoints.

        :param error: what ended the training
        """
        if isinstance(error, FloatingPointError) and self.folder is not None and self._lock is not None:
            path = Path(self.folder) / f"model_{self.model.num_timesteps}_steps_before_error.zip"
            try:
                self.model.save(path)
                warnings.warn(f"the model from before the error is saved in {path}", stacklevel=2)
            except OSError as failure:
                warnings.warn(f"the model from before the error could not be saved: {failure}", stacklevel=2)
        self._unlock_folder()

    def _on_rollout_start(self) -> None:
        if self._resuming is not None:
            saved, self._resuming = self._resuming, None
            self._restore(saved)
            self._set_aside(self._later_checkpoints())
        elif self.model.num_timesteps - self.last_saved >= self.save_freq:
            self.last_saved = self.model.num_timesteps
            self._save()

    def _save(self) -> None:
        import sb3_ora

        assert self.folder is not None
        run = self._run()
        try:
            state = run.state()
            learner = type(self.model)
            meta = {
                "format": FORMAT,
                "sb3_ora": sb3_ora.__version__,
                "algorithm": [learner.__module__, learner.__qualname__],
                "num_timesteps": self.model.num_timesteps,
                "total_timesteps": self.model._total_timesteps,
                "n_envs": self.model.n_envs,
                "learn": {name: self.locals.get(name) for name in LEARN},
                "log_folder": _log_folder(self.model),
                "kinds": run.kinds,
                "loses_episodes": run.loses_episodes,
                "uncopied": run.uncopied,
            }
            self._warn_if_inexact(run)
            path = Path(self.folder) / f"run_{self.model.num_timesteps}_steps.zip"
            write_checkpoint(path, self.model, meta, state)
        except OSError as error:
            warnings.warn(f"no checkpoint at step {self.model.num_timesteps}: {error}; training goes on", stacklevel=2)
            return
        for old in checkpoints_in(self.folder)[self.keep :]:
            old.unlink(missing_ok=True)
        if self.verbose >= 1:
            print(f"Checkpoint of the run: {path}")

    def _warn_if_inexact(self, run: Run) -> None:
        """Say once why a resumed run will not be exactly this one."""
        reasons = []
        if run.remote:
            reasons.append(f"the environments in {run.remote[0]} cannot be copied")
        if run.uncopied:
            reasons.append(f"{', '.join(run.uncopied[:3])} cannot be copied")
        if self.model.device.type != "cpu":
            reasons.append(f"kernels of {self.model.device.type} may not be deterministic")
        if reasons and not self.warned:
            self.warned = True
            consequence = "from the beginning of an episode" if run.loses_episodes else "but perhaps not bit for bit"
            warnings.warn(f"a resumed run will go on {consequence}: {'; '.join(reasons)}", stacklevel=2)

    def _restore(self, saved: Saved) -> None:
        run = self._run()
        if run.kinds != saved.meta["kinds"]:
            raise CheckpointError(
                f"{saved.path} is of a run with other environments, wrappers or callbacks:\n"
                f"  there {saved.meta['kinds']}\n  here  {run.kinds}"
            )
        run.restore(saved.run)
        if saved.meta["loses_episodes"]:
            self._start_episodes()

    def _set_aside(self, later: list[Path]) -> None:
        """Give names that are not those of checkpoints to what the run wrote after the one from which it goes on."""
        renamed = [_free_name(path.with_name(f"aside_{steps_of(path)}_steps.zip")) for path in later]
        for path, new in zip(later, renamed, strict=True):
            path.rename(new)
        if renamed:
            warnings.warn(
                f"the run goes on from step {self.model.num_timesteps}: later checkpoints in {str(self.folder)!r} are kept as "
                f"{', '.join(path.name for path in renamed)}; remove them if you do not need them",
                stacklevel=2,
            )

    def _start_episodes(self) -> None:
        """Leave the episodes that were going on, whose environments are lost."""
        model = self.model
        assert model.env is not None
        model._last_obs = model.env.reset()  # type: ignore[assignment]
        if model._vec_normalize_env is not None:
            model._last_original_obs = model._vec_normalize_env.get_original_obs()
        model._last_episode_starts = np.ones(model.n_envs, dtype=bool)
        model.leave_episodes()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "model": None, "parent": None, "locals": {}, "globals": {}, "_resuming": None, "_lock": None}


NOT_COPIED[RunCheckpoint] = {"folder", "_lock"}


def resume(
    path: str | Path,
    env: GymEnv | str,
    callback: MaybeCallback = None,
    device: th.device | str = "auto",
    logger: Logger | None = None,
    **learn_kwargs: Any,
) -> OffPolicyAlgorithm:
    """
    Continue a run from its last checkpoint to the end it was meant to have.

    :param path: folder of the checkpoints, or one of them
    :param env: environment made as at the start of the run (if registered in Gym, can be str)
    :param callback: the callbacks of the run, made as at its start; the :class:`RunCheckpoint` may be left out if it was
        the only one
    :param device: device of the model
    :param logger: logger of the run, where it was given one by ``set_logger``
    :param learn_kwargs: arguments of ``learn`` that are to differ: ``log_interval``, ``tb_log_name``, ``progress_bar``
    :return: the trained model
    :raises CheckpointError: if there is no checkpoint that can be read, or it does not fit to ``env`` and ``callback``
    :raises TypeError: for another argument of ``learn``
    """
    for name, value in learn_kwargs.items():
        if name not in LEARN:
            raise TypeError(f"resume takes {', '.join(LEARN)} of the arguments of learn, got {name}={value!r}")
    saved = last_checkpoint(path)
    env = OffPolicyAlgorithm._wrap_env(maybe_make_env(env, 0), 0)
    if env.num_envs != saved.meta["n_envs"]:
        raise CheckpointError(f"env has {env.num_envs} environments, but the run of {saved.path} had {saved.meta['n_envs']}")
    module, name = saved.meta["algorithm"]
    try:
        learner = _find_class(module, name)
    except (ImportError, AttributeError) as error:
        raise CheckpointError(f"{saved.path} is of a {module}.{name}, which cannot be imported: {error}") from error
    model = learner.load(io.BytesIO(saved.model), env=env, device=device, force_reset=False)
    _set_replay_buffer(model, saved.replay_buffer)
    folder = None if "tb_log_name" in learn_kwargs else saved.meta["log_folder"]
    if logger is not None:
        model.set_logger(logger)
    elif folder is not None and model.tensorboard_log is not None:
        # SB3 would go on in the last folder of this name, which may be another run's
        formats = ["stdout", "tensorboard"] if model.verbose >= 1 else ["tensorboard"]
        model.set_logger(configure(os.path.join(model.tensorboard_log, folder), formats))
    if callback is None:
        callback = RunCheckpoint(model.num_timesteps or 1, saved.path.parent)
    checkpoint = _find_run_checkpoint(callback)
    checkpoint._resuming = saved
    learn_kwargs = {**saved.meta["learn"], **learn_kwargs}
    remaining = saved.meta["total_timesteps"] - saved.meta["num_timesteps"]
    try:
        return model.learn(remaining, callback, reset_num_timesteps=False, **learn_kwargs)
    finally:
        if logger is None and folder is not None:  # a training after this one gets a logger of its own
            model._custom_logger = False


def _free_name(path: Path) -> Path:
    names = [path, *(path.with_stem(f"{path.stem}_{number}") for number in range(2, 1000))]
    return next(name for name in names if not name.exists())


def _find_class(module: str, qualname: str) -> Any:
    return operator.attrgetter(qualname)(importlib.import_module(module))


def _log_folder(model: OffPolicyAlgorithm) -> str | None:
    """The run's own folder in ``tensorboard_log``."""
    if model.tensorboard_log is None or model.logger.dir is None:
        return None
    log, folder = Path(os.path.abspath(model.tensorboard_log)), Path(os.path.abspath(model.logger.dir))
    return folder.relative_to(log).as_posix() if log in folder.parents else None


def _set_replay_buffer(model: OffPolicyAlgorithm, buffer: ReplayBuffer) -> None:
    model.replay_buffer = buffer
    buffer.device = model.device
    if isinstance(buffer, HerReplayBuffer):
        assert model.env is not None
        buffer.set_env(model.env)


def _find_run_checkpoint(callback: MaybeCallback) -> RunCheckpoint:
    """
    :param callback: the callbacks of a run
    :return: the one that writes its checkpoints
    :raises ValueError: if there is none
    """
    for part in walk_callbacks(callback):
        if isinstance(part, RunCheckpoint):
            return part
    raise ValueError("callback holds no RunCheckpoint: resume needs the callbacks that the run had")
