"""The state of a run in training: what it consists of, how it is copied, and how it is put back."""

from __future__ import annotations

import io
import os
import pickle
import random
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import cloudpickle
import gymnasium as gym
import numpy as np
import torch as th
from gymnasium.utils import EzPickle
from gymnasium.wrappers import RecordVideo
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    EventCallback,
    ProgressBarCallback,
)
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper, VecMonitor, VecVideoRecorder

from sb3_ora.callbacks import walk_callbacks
from sb3_ora.envs.nano_drone.vec_env import NanoDroneVecEnv
from sb3_ora.iqn.acting import ActingAlgorithm

#: Attributes that are not a run's, by the class to which they belong: a resumed run has its own
NOT_COPIED: dict[type, set[str]] = {
    BaseCallback: {"model", "parent", "locals", "globals"},
    EventCallback: {"callback"},
    ConvertCallback: {"callback"},
    CheckpointCallback: {"save_path"},
    EvalCallback: {"callback_on_new_best", "best_model_save_path", "log_path"},
    Monitor: {"results_writer"},
    VecMonitor: {"results_writer"},
    VecEnvWrapper: {"class_attributes"},
    RecordVideo: {"video_folder"},
    VecVideoRecorder: {"video_folder"},
    th.nn.Module: {*vars(th.nn.Module())},
}
#: Attributes that belong to a window or to a terminal, where they are objects of these libraries
OF_WINDOWS = {"screen", "clock", "window", "viewer", "surf", "pbar"}
WINDOW_LIBRARIES = {"pygame", "pyglet", "cv2", "glfw", "matplotlib", "mujoco", "Box2D", "gymnasium", "tqdm"}
#: How names of attributes end that say where files are, which may have been moved
PATH_NAMES = ("path", "folder", "dir", "directory", "filename")


def env_layers(env: Any) -> Iterator[Any]:
    """
    :param env: an environment
    :return: its wrappers from the outside in, and what they wrap; of a ``DummyVecEnv`` those of each environment
    """
    yield env
    if isinstance(env, VecEnvWrapper):
        yield from env_layers(env.venv)
    elif isinstance(env, DummyVecEnv):
        for part in env.envs:
            yield from env_layers(part)
    elif isinstance(env, gym.Wrapper):
        yield from env_layers(env.env)


def _is_copied(part: Any, name: str, value: Any) -> bool:
    """Whether an attribute is a run's, and not one that a resumed run has itself."""
    if any(name in names and isinstance(part, owner) for owner, names in NOT_COPIED.items()):
        return False
    return name not in OF_WINDOWS or type(value).__module__.partition(".")[0] not in WINDOW_LIBRARIES


def _is_path(value: Any) -> bool:
    return isinstance(value, os.PathLike) or (isinstance(value, str) and (os.sep in value or os.path.exists(value)))


def _choose_paths(part: Any, values: dict[str, Any]) -> dict[str, Any]:
    """
    Files of a callback may have been moved: of two paths its own one holds. What an environment calls a path may be its
    state: that of the checkpoint holds. A warning says so.

    :param part: callback or environment, as it was made for the resumed run
    :param values: its attributes in the checkpoint
    :return: those to give it
    """
    chosen = dict(values)
    for name, there in values.items():
        here = vars(part).get(name)
        if not name.endswith(PATH_NAMES) or not isinstance(there, (str, os.PathLike, type(None))) or here is None:
            continue
        if there != here and (_is_path(there) or _is_path(here)):
            if isinstance(part, BaseCallback):
                chosen[name] = here
            warnings.warn(
                f"{type(part).__name__}.{name} is {there!r} in the checkpoint and {here!r} in the object given: "
                f"the run goes on with {chosen[name]!r}",
                stacklevel=2,
            )
    return chosen


def _out_of_reach(part: Any) -> bool:
    """Whether this is a vectorised environment that keeps its environments elsewhere, such as in other processes."""
    return isinstance(part, VecEnv) and not isinstance(part, (VecEnvWrapper, DummyVecEnv, NanoDroneVecEnv))


class Run:
    """
    The objects whose state is a run's, in an order that is the same in every process: environments with their wrappers,
    callbacks, and what of the model its own file does not hold.

    :param model: the model in training
    :param callback: the outermost callback of the training
    """

    def __init__(self, model: ActingAlgorithm, callback: BaseCallback):
        self.model = model
        self.callbacks = list(walk_callbacks(callback))
        environments = [model.env]
        for part in self.callbacks:
            environments += [value for value in vars(part).values() if isinstance(value, VecEnv) and value is not model.env]
        self.environments = [env for i, env in enumerate(environments) if not any(env is other for other in environments[:i])]
        self.layers = [layer for env in self.environments for layer in env_layers(env)]
        kept = [part for part in self.callbacks if not isinstance(part, ProgressBarCallback)]
        self.objects = [*self.layers, *kept]
        risk = getattr(model.policy, "risk", None)
        if risk is not None:
            self.objects.append(risk)
        #: What is not copied but refers to the object of the other process
        self.fixed = [*self.objects, model, model.policy, model.logger, model.replay_buffer, model.env]
        #: Attributes that cannot be copied, and whether there are environments among what has them
        self.uncopied: list[str] = []
        self.loses_episodes = False

    @property
    def kinds(self) -> list[str]:
        """The classes of the objects, by which a run is known again."""
        return [f"{type(part).__module__}.{type(part).__qualname__}" for part in self.objects]

    @property
    def remote(self) -> list[str]:
        """Vectorised environments whose state is out of reach."""
        return [type(layer).__name__ for layer in self.layers if _out_of_reach(layer)]

    def state(self) -> bytes:
        """
        :return: the pickled state; what cannot be pickled is named in ``uncopied``
        """
        self.uncopied, self.loses_episodes = [], bool(self.remote)
        objects = []
        for part in self.objects:
            values = {} if _out_of_reach(part) else vars(part)
            objects.append({name: value for name, value in values.items() if self._copies(part, name, value)})
        model = self.model
        live = ("_acting_alphas", "_previous_actions", "_last_obs", "_last_original_obs", "action_space")
        state = {
            "objects": objects,
            "model": {name: getattr(model, name) for name in live if hasattr(model, name)},
            "acting": model._acting,
            "files": _read_files(self),
            "logger": [dict(getattr(model.logger, f"name_to_{name}")) for name in ("value", "count", "excluded")],
            "random": _random_state(),
        }
        return self._dumps(state)

    def restore(self, state: bytes) -> None:
        """
        :param state: what :meth:`state` returned, in this process or another one
        """
        loaded = _Unpickler(io.BytesIO(state), self.fixed).load()
        for part, values in zip(self.objects, loaded["objects"], strict=True):
            part.__dict__.update(_choose_paths(part, values))
        for name, value in loaded["model"].items():
            setattr(self.model, name, value)
        self.model._acting = loaded["acting"]
        for name, values in zip(("value", "count", "excluded"), loaded["logger"], strict=True):
            getattr(self.model.logger, f"name_to_{name}").update(values)
        _write_files(self, loaded["files"])
        _set_random_state(loaded["random"])

    def _copies(self, part: Any, name: str, value: Any) -> bool:
        if not _is_copied(part, name, value):
            return False
        try:
            self._dumps(value)
        except Exception:  # whatever a foreign object's reduction raises
            place = f"{type(part).__name__}.{name}"
            if place not in self.uncopied:
                self.uncopied.append(place)
            self.loses_episodes |= not isinstance(part, BaseCallback)
            return False
        return True

    def _dumps(self, value: Any) -> bytes:
        buffer = io.BytesIO()
        _Pickler(buffer, self.fixed).dump(value)
        return buffer.getvalue()


class _Pickler(cloudpickle.CloudPickler):
    """Pickles references to the fixed objects of a run instead of the objects."""

    def __init__(self, file: io.BytesIO, fixed: list[Any]):
        super().__init__(file)
        self.indices = {id(part): index for index, part in reversed(list(enumerate(fixed))) if part is not None}

    def persistent_id(self, obj: Any) -> int | None:
        return self.indices.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, EzPickle) and type(obj).__getstate__ is EzPickle.__getstate__:
            raise pickle.PicklingError(f"a pickle of {type(obj).__name__} holds its arguments and not its state")
        return super().reducer_override(obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, fixed: list[Any]):
        super().__init__(file)
        self.fixed = fixed

    def persistent_load(self, pid: int) -> Any:
        return self.fixed[pid]


def _random_state() -> dict[str, Any]:
    state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": th.get_rng_state()}
    if th.cuda.is_initialized():  # a run on the CPU takes no memory of a card
        state["cuda"] = th.cuda.get_rng_state_all()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    th.set_rng_state(state["torch"])
    if "cuda" in state and th.cuda.is_available():
        th.cuda.set_rng_state_all(state["cuda"][: th.cuda.device_count()])


# Files that grow with a run: monitor rows, and what the logger writes as text


def _open_files(run: Run) -> list[tuple[Any, Any]]:
    """Each file with the object that writes it."""
    monitors = [layer for layer in run.layers if isinstance(layer, (Monitor, VecMonitor))]
    writers = [monitor.results_writer for monitor in monitors if monitor.results_writer is not None]
    files: list[tuple[Any, Any]] = [(writer, writer.file_handler) for writer in writers]
    for output in run.model.logger.output_formats:
        file = getattr(output, "file", None)
        if file is not None and isinstance(getattr(file, "name", None), str) and os.path.isfile(file.name):
            files.append((output, file))
    return files


class _Content(NamedTuple):
    name: str  # of the file, in its folder
    text: str
    columns: list[str] | None  # of a logger's table, which come in the order of their use


def _read_files(run: Run) -> list[_Content]:
    contents = []
    for writer, file in _open_files(run):
        file.flush()
        with open(file.name, newline="") as copy:
            contents.append(_Content(os.path.basename(file.name), copy.read(), getattr(writer, "keys", None)))
    return contents


def _write_files(run: Run, contents: list[_Content]) -> None:
    """Files are known by their names, those of one name (in different folders) by their order."""
    left = list(contents)
    for writer, file in _open_files(run):
        content = next((content for content in left if content.name == os.path.basename(file.name)), None)
        if content is None:
            continue
        left.remove(content)
        _, text, columns = content
        file.flush()
        file.seek(0)
        file.truncate()
        file.write(text)
        file.flush()
        if columns is not None:
            writer.keys = columns
