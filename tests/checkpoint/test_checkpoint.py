"""A run that is stopped anywhere and resumed against the same run left alone."""

import errno
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from collections import deque
from pathlib import Path

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
from gymnasium.utils import EzPickle
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, EvalCallback, EveryNTimesteps
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor, VecNormalize

from sb3_ora import IQN, ORAIQN
from sb3_ora.checkpoint import CheckpointError, RunCheckpoint, checkpoints_in, last_checkpoint, read_checkpoint, resume
from sb3_ora.checkpoint.files import FORMAT, steps_of
from sb3_ora.checkpoint.run import Run, _Unpickler
from tests.checkpoint.small_run import assert_same, small_run
from tests.tiny import same_parameters, tiny
from tests.toy_envs import Chain, Scripted

SCRIPT = Path(__file__).with_name("small_run.py")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that was left alone, and its folder."""
    folder = tmp_path_factory.mktemp("finished")
    small_run(folder, "ORAIQN", "CartPole-v1", 2)
    return folder


@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("algorithm", ["IQN", "ORAIQN", "ARTIQN", "TOPIQN"])
def test_a_resumed_run_is_the_same_run(algorithm, n_envs, tmp_path):
    small_run(tmp_path / "whole", algorithm, "CartPole-v1", n_envs)
    small_run(tmp_path / "parts", algorithm, "CartPole-v1", n_envs, crash_at=170)
    small_run(tmp_path / "parts", algorithm, "CartPole-v1", n_envs, go_on=True, crash_at=250)
    small_run(tmp_path / "parts", algorithm, "CartPole-v1", n_envs, go_on=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(("env_id", "n_envs"), [("NanoDrone-v0", 1), ("NanoDroneVecEnv", 3)])
def test_drones_fly_on(env_id, n_envs, tmp_path):
    """Noise is drawn in blocks, and each drone has a generator of its own: both are taken up in the middle."""
    small_run(tmp_path / "whole", "ORAIQN", env_id, n_envs)
    small_run(tmp_path / "parts", "ORAIQN", env_id, n_envs, crash_at=200)
    small_run(tmp_path / "parts", "ORAIQN", env_id, n_envs, go_on=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("settings", [{"risk_adapter": "recursive"}, {"reference": "visit"}, {"train_freq": (1, "episode")}])
def test_other_settings(settings, tmp_path):
    small_run(tmp_path / "whole", "ORAIQN", "CartPole-v1", **settings)
    small_run(tmp_path / "parts", "ORAIQN", "CartPole-v1", crash_at=200, **settings)
    small_run(tmp_path / "parts", "ORAIQN", "CartPole-v1", go_on=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def kill(command, folder, steps, generator, moment):
    """
    One process, with SIGKILL: at its "start", which is mostly that of Python; in its "run", just after a checkpoint that is
    drawn from those until ``steps``; or in the "write" of the one after it. Returns whether it was then.
    """
    checkpoints = folder / "checkpoints"
    last = max(map(steps_of, checkpoints_in(checkpoints)), default=0)
    wanted = 0 if moment == "start" else generator.randint(last + 1, max(last + 1, steps))
    for left in checkpoints.glob("*.tmp"):
        left.unlink()
    process = subprocess.Popen([*command, *(["resume"] if last else [])])
    while process.poll() is None and max(map(steps_of, checkpoints_in(checkpoints)), default=0) < wanted:
        time.sleep(0.005)
    if moment == "write":
        while process.poll() is None and not list(checkpoints.glob("*.tmp")):
            pass
    else:
        time.sleep(generator.uniform(0, 5 if moment == "start" else 0.02))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    return moment != "write" or bool(list(checkpoints.glob("*.tmp")))


def kill_and_resume(folder, whole, algorithm, env_id, n_envs, steps, moments, monkeypatch):
    """Compare a run that was killed at these moments with one that was not."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    command = [sys.executable, str(SCRIPT), str(folder), algorithm, env_id, str(n_envs), str(steps)]
    generator = random.Random(f"{algorithm} {env_id}")
    for number, moment in enumerate(moments, start=1):
        until = steps * number // (len(moments) + 2)
        # A write may be over before the signal arrives
        assert any(kill(command, folder, until, generator, moment) for _ in range(5))
    subprocess.run([*command, "resume"], check=True)
    assert_same(whole, folder)


def test_a_killed_process(finished, tmp_path, monkeypatch):
    kill_and_resume(tmp_path, finished, "ORAIQN", "CartPole-v1", 2, 300, ["write", "run"], monkeypatch)


#: 20 kills in all, 9 of them during the write of a checkpoint
KILLED = {
    ("IQN", "CartPole-v1", 1): ["run", "write"],
    ("ORAIQN", "CartPole-v1", 3): ["write", "run"],
    ("ARTIQN", "CartPole-v1", 1): ["run", "write"],
    ("TOPIQN", "CartPole-v1", 3): ["write", "run"],
    ("IQN", "NanoDrone-v0", 3): ["run", "write"],
    ("ORAIQN", "NanoDrone-v0", 1): ["write", "run"],
    ("ARTIQN", "NanoDrone-v0", 3): ["run", "write"],
    ("TOPIQN", "NanoDrone-v0", 1): ["write", "run"],
    ("ORAIQN", "NanoDroneVecEnv", 3): ["run", "start", "write", "run"],
}


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "env_id", "n_envs"), KILLED)
def test_processes_killed_at_random_moments(algorithm, env_id, n_envs, tmp_path, monkeypatch):
    assert sum(map(len, KILLED.values())) == 20
    small_run(tmp_path / "whole", algorithm, env_id, n_envs, 1000)
    moments = KILLED[algorithm, env_id, n_envs]
    kill_and_resume(tmp_path / "parts", tmp_path / "whole", algorithm, env_id, n_envs, 1000, moments, monkeypatch)


def test_killed_during_the_write(finished, tmp_path):
    """The process ends just before the file gets its name; what is left of it is in nobody's way."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    old, new = reversed(checkpoints_in(tmp_path / "checkpoints"))
    new.rename(new.with_suffix(".tmp"))
    assert last_checkpoint(tmp_path / "checkpoints").path == old
    small_run(tmp_path, "ORAIQN", "CartPole-v1", 2, go_on=True)
    assert_same(finished, tmp_path)


# Files that are not in order


def test_the_last_two_are_kept(finished):
    steps = [read_checkpoint(path).meta["num_timesteps"] for path in checkpoints_in(finished / "checkpoints")]
    assert len(steps) == 2 and steps[0] - steps[1] >= 60


def cut(content):
    return content[: len(content) // 2]


def changed(content):
    place = content.index(b"run.pkl") + 50
    return content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]


def newer(content):
    source, target = zipfile.ZipFile(io.BytesIO(content)), io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name in source.namelist():
            entry = source.read(name)
            archive.writestr(name, entry.replace(b'"format": %d' % FORMAT, b'"format": 99') if name == "meta.json" else entry)
    return target.getvalue()


def foreign(content):
    buffer = io.BytesIO()
    tiny(IQN, Chain()).save(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: b"", "is empty"),
        (cut, "truncated"),
        (changed, "damaged"),
        (newer, "format 99"),
        (foreign, "not a checkpoint"),
        (lambda content: b"hello", "not a checkpoint"),
    ],
)
def test_a_bad_file_is_passed_over(spoil, message, finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    new, old = checkpoints_in(tmp_path / "checkpoints")
    new.write_bytes(spoil(new.read_bytes()))
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(new)
    with pytest.warns(UserWarning, match=f"{message}.*trying the checkpoint before it"):
        assert last_checkpoint(tmp_path / "checkpoints").path == old
    old.unlink()
    with pytest.raises(CheckpointError, match=f"(?s)no checkpoint to resume from.*{message}"), pytest.warns(UserWarning):
        last_checkpoint(tmp_path / "checkpoints")


def test_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint to resume from"):
        resume(tmp_path, make_vec_env("CartPole-v1", 1))


def test_a_full_disk(tmp_path, monkeypatch):
    """The first write succeeds, the second fails; training goes on, and the first file stays."""
    sync, calls = os.fsync, []

    def fsync(number):
        calls.append(number)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(number)

    monkeypatch.setattr("os.fsync", fsync)
    with pytest.warns(UserWarning, match="no checkpoint at step 120: .*No space left.*; training goes on"):
        model = tiny(ORAIQN, Chain()).learn(150, callback=RunCheckpoint(60, tmp_path))
    assert model.num_timesteps >= 150
    assert {path.name for path in tmp_path.iterdir()} == {"run.lock", "run_60_steps.zip"}
    assert last_checkpoint(tmp_path).meta["num_timesteps"] == 60


# Runs that do not fit, or cannot be exact


def test_inside_an_event_callback_it_would_not_see_rollouts(tmp_path):
    for nested in (RunCheckpoint(1, tmp_path), CallbackList([RunCheckpoint(1, tmp_path)])):
        with pytest.raises(ValueError, match="a RunCheckpoint inside a EveryNTimesteps would not see rollouts begin"):
            tiny(IQN, Scripted((4,))).learn(60, callback=EveryNTimesteps(10, nested))


def test_environments_as_models_take_them(tmp_path):
    """One environment, or its id, that a model would wrap itself; and a progress bar where there was none."""
    whole = tiny(IQN, "CartPole-v1").learn(120, callback=RunCheckpoint(60, tmp_path / "whole"))
    for i, env in enumerate((gym.make("CartPole-v1"), "CartPole-v1")):
        folder = tmp_path / str(i)
        with pytest.raises(KeyboardInterrupt):
            tiny(IQN, "CartPole-v1").learn(120, callback=[RunCheckpoint(60, folder), stop_at(90)])
        resumed = resume(folder, env, [RunCheckpoint(60, folder), stop_at(None)], progress_bar=bool(i))
        assert same_parameters(resumed.get_parameters(), whole.get_parameters())


def test_another_number_of_environments(finished):
    with pytest.raises(CheckpointError, match=r"env has 3 environments, but the run .* had 2"):
        resume(finished / "checkpoints", make_vec_env("CartPole-v1", 3))


def test_other_callbacks(finished):
    with pytest.raises(CheckpointError, match="other environments, wrappers or callbacks"):
        resume(finished / "checkpoints", make_vec_env("CartPole-v1", 2))


def test_callbacks_without_a_checkpoint(finished):
    with pytest.raises(ValueError, match="callback holds no RunCheckpoint"):
        resume(finished / "checkpoints", make_vec_env("CartPole-v1", 2), callback=[])


@pytest.mark.parametrize("arguments", [{"save_freq": 0}, {"save_freq": 1.5}, {"save_freq": 10, "keep": 0}])
def test_arguments(arguments):
    with pytest.raises(ValueError, match=r"(save_freq|keep) must be an integer of at least 1, got (0|1\.5)"):
        RunCheckpoint(folder="x", **arguments)


def test_a_folder_is_needed():
    with pytest.raises(ValueError, match="folder=None"):
        tiny(IQN, Chain()).learn(10, callback=RunCheckpoint(5))


def test_another_algorithm(tmp_path):
    with pytest.raises(ValueError, match="RunCheckpoint is for the algorithms of sb3_ora, not for DQN"):
        DQN("MlpPolicy", "CartPole-v1").learn(10, callback=RunCheckpoint(5, tmp_path))


class Locked(gym.Wrapper):
    """An environment that cannot be pickled."""

    def __init__(self, env):
        super().__init__(env)
        self.lock = threading.Lock()


@pytest.mark.parametrize("kind", ["subprocess", "lock"])
def test_environments_that_cannot_be_copied(kind, tmp_path):
    """Told once; the run goes on with new episodes, and n-step returns do not reach into them."""

    def make():
        if kind == "lock":
            return make_vec_env("CartPole-v1", 2, seed=0, wrapper_class=Locked)
        return make_vec_env("CartPole-v1", 2, seed=0, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"})

    env = make()
    reason = "Locked.lock cannot be copied" if kind == "lock" else "the environments in SubprocVecEnv cannot be copied"
    with pytest.warns(UserWarning, match=f"from the beginning of an episode: {reason}") as told:
        tiny(ORAIQN, env, n_steps=3).learn(200, callback=RunCheckpoint(40, tmp_path))
    assert len([warning for warning in told if "a resumed run" in str(warning.message)]) == 1
    env.close()
    saved, env = last_checkpoint(tmp_path), make()
    model = resume(tmp_path, env)
    env.close()
    assert model.num_timesteps >= 200
    last = saved.replay_buffer.pos - 1
    assert saved.replay_buffer.timeouts[last].all() or model.replay_buffer.timeouts[last].all()


# Which files are whose


def test_an_earlier_checkpoint_of_the_folder(tmp_path):
    """What came after it is put aside: it neither pushes out new checkpoints nor is it what a killed run goes on from."""

    def make():
        return make_vec_env("CartPole-v1", 1, seed=0)

    def files():
        return {path.name: path.read_bytes() for path in tmp_path.glob("*.zip")}

    def callbacks(step):
        return [RunCheckpoint(40, tmp_path, keep=2), stop_at(step)]

    whole = tiny(IQN, make()).learn(130, callback=callbacks(None))
    before = files()
    assert sorted(before) == ["run_120_steps.zip", "run_80_steps.zip"]
    with pytest.raises(CheckpointError, match="other environments, wrappers or callbacks"):
        resume(tmp_path / "run_80_steps.zip", make())
    assert files() == before
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="from step 80: .*kept as aside_120_steps.zip"):
        resume(tmp_path / "run_80_steps.zip", make(), callbacks(95))
    assert files() == {"run_80_steps.zip": before["run_80_steps.zip"], "aside_120_steps.zip": before["run_120_steps.zip"]}
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path, make(), callbacks(125))
    assert last_checkpoint(tmp_path).path.name == "run_120_steps.zip"
    with pytest.warns(UserWarning, match=r"kept as aside_120_steps_2\.zip"):
        resumed = resume(tmp_path / "run_80_steps.zip", make(), callbacks(None))
    names = ["aside_120_steps.zip", "aside_120_steps_2.zip", "run_120_steps.zip", "run_80_steps.zip"]
    assert sorted(files()) == names
    assert same_parameters(resumed.get_parameters(), whole.get_parameters())


def test_a_folder_with_later_checkpoints_of_another_run(tmp_path):
    for name, steps in (("one", 90), ("other", 130)):
        tiny(IQN, make_vec_env(Chain, 1, seed=0)).learn(steps, callback=RunCheckpoint(40, tmp_path / name))
    with pytest.raises(CheckpointError, match=r"holds run_120_steps.zip of another run, and this one is at step 80"):
        resume(tmp_path / "one", make_vec_env(Chain, 1, seed=0), RunCheckpoint(40, tmp_path / "other"))


def test_tensorboard_goes_on_in_the_folder_of_the_run(tmp_path):
    """Also where another run began after it; a training after it has a folder of its own."""

    def events():
        return {path.name: len(list(path.iterdir())) for path in (tmp_path / "log").iterdir()}

    def callbacks(step):
        return [RunCheckpoint(60, tmp_path / "run"), stop_at(step)]

    with pytest.raises(KeyboardInterrupt):
        model = tiny(IQN, make_vec_env(Chain, 1, seed=0), tensorboard_log=str(tmp_path / "log"))
        model.learn(200, callback=callbacks(100))
    tiny(IQN, Chain(), tensorboard_log=str(tmp_path / "log")).learn(60)
    assert events() == {"IQN_1": 1, "IQN_2": 1}
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "run", make_vec_env(Chain, 1, seed=0), callbacks(150))
    model = resume(tmp_path / "run", make_vec_env(Chain, 1, seed=0), callbacks(None))
    assert events() == {"IQN_1": 3, "IQN_2": 1}
    model.learn(60)
    assert events() == {"IQN_1": 3, "IQN_2": 1, "IQN_3": 1}


class Outer:
    class Mine(IQN):
        pass


def test_a_class_in_a_class(tmp_path):
    whole = tiny(Outer.Mine, make_vec_env(Chain, 1, seed=0)).learn(90, callback=RunCheckpoint(60, tmp_path))
    resumed = resume(tmp_path, make_vec_env(Chain, 1, seed=0))
    assert type(resumed) is Outer.Mine
    assert same_parameters(resumed.get_parameters(), whole.get_parameters())


def test_a_class_that_another_process_does_not_find(tmp_path, monkeypatch):
    class Mine(IQN):
        pass

    with pytest.raises(ValueError, match=r"a run of .*<locals>\.Mine cannot be resumed, as another process does not find"):
        tiny(Mine, Chain()).learn(90, callback=RunCheckpoint(60, tmp_path))
    tiny(Outer.Mine, Chain()).learn(90, callback=RunCheckpoint(60, tmp_path))
    monkeypatch.delattr(Outer, "Mine")
    with pytest.raises(CheckpointError, match=r"is of a .*Outer\.Mine, which cannot be imported"):
        resume(tmp_path, make_vec_env(Chain, 1))


# What a run consists of


class Walk(gym.Env):
    """Its state has names as those of files and windows have; the reward is all of it."""

    observation_space = gym.spaces.Box(-1e3, 1e3, (1,))
    action_space = gym.spaces.Discrete(2)
    agent_dir = path = clock = model = None

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.agent_dir, self.path, self.clock, self.model = "north", [0], 0.0, np.zeros(2)
        self.window = deque([0.0], maxlen=3)
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        self.agent_dir = {"north": "east", "east": "south", "south": "north"}[self.agent_dir]
        self.path = [*self.path, int(action)]
        self.clock += 0.1
        self.model = self.model + 1
        self.window.append(self.clock)
        reward = len(self.agent_dir) + sum(self.path) + sum(self.window) + float(self.model.sum())
        return np.array([reward], dtype=np.float32), reward, len(self.path) == 37, False, {}


class Slots:
    __slots__ = ("steps",)

    def __init__(self):
        self.steps = 0


class Holder(Walk):
    """Something that is no environment has the name that a wrapper's environment has."""

    def __init__(self, value):
        self.env = value

    def step(self, action):
        observation, reward, *rest = super().step(action)
        if isinstance(self.env, Slots):
            self.env.steps += 1
            reward += self.env.steps
        return observation, reward, *rest


class Tasks(gym.Env):
    """Several environments in one, which take turns; that they have a wrapper is needed to go on in them."""

    observation_space = Walk.observation_space
    action_space = Walk.action_space

    def __init__(self):
        self.envs = [gym.wrappers.TimeLimit(Walk(), 5), gym.wrappers.TimeLimit(Walk(), 9)]

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.envs.reverse()
        return self.envs[0].reset(seed=seed)

    def step(self, action):
        return self.envs[0].step(action)


class Maze(gym.Wrapper):
    """Its state has the name and the look of a file's place; so has a callback's, see ``Places``."""

    def __init__(self, env):
        super().__init__(env)
        self.task_path, self.episode = "maze/0", 0

    def reset(self, **kwargs):
        self.episode += 1
        self.task_path = f"maze/{self.episode // 2}"
        return self.env.reset(**kwargs)

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation, reward + int(self.task_path[-1]), *rest


ENVIRONMENTS = {
    "env None": lambda: Holder(None),
    "env str": lambda: Holder("warehouse"),
    "env dict": lambda: Holder({"a": 1}),
    "env slots": lambda: Holder(Slots()),
    "envs": Tasks,
    "path": lambda: Maze(gym.wrappers.TimeLimit(Walk(), 35)),
}


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_names_of_other_classes_are_state(kind, tmp_path):
    """An attribute is left out for the class that it belongs to, and not for its name."""

    def make():
        return make_vec_env(ENVIRONMENTS[kind], 1, seed=0)

    whole = tiny(IQN, make()).learn(160, callback=RunCheckpoint(60, tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        tiny(IQN, make()).learn(160, callback=[RunCheckpoint(60, tmp_path / "parts"), stop_at(130)])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        resumed = resume(tmp_path / "parts", make(), [RunCheckpoint(60, tmp_path / "parts"), stop_at(None)])
    told = [str(warning.message) for warning in told if "checkpoint" in str(warning.message)]
    place = "Maze.task_path is 'maze/2' in the checkpoint and 'maze/0' in the object given: the run goes on with 'maze/2'"
    assert told == ([place] if kind == "path" else [])
    assert np.array_equal(resumed.replay_buffer.rewards, whole.replay_buffer.rewards)
    assert same_parameters(resumed.policy.state_dict(), whole.policy.state_dict())


class ByArguments(Walk, EzPickle):
    """Its pickle has only the arguments."""

    def __init__(self):
        EzPickle.__init__(self)


class OneOf(Tasks):
    def __init__(self):
        self.envs = [ByArguments(), ByArguments()]


def test_pickles_without_the_state(tmp_path):
    """Told, as environments that cannot be pickled are; as an environment of its own, it is copied."""
    with pytest.warns(UserWarning, match="from the beginning of an episode: OneOf.envs cannot be copied"):
        tiny(IQN, make_vec_env(OneOf, 1, seed=0)).learn(90, callback=RunCheckpoint(60, tmp_path / "one"))
    assert last_checkpoint(tmp_path / "one").meta["loses_episodes"]
    tiny(IQN, make_vec_env(ByArguments, 1, seed=0)).learn(90, callback=RunCheckpoint(60, tmp_path / "other"))
    assert not last_checkpoint(tmp_path / "other").meta["loses_episodes"]


class Places(BaseCallback):
    def __init__(self, folder, lock=None):
        super().__init__()
        self.save_path, self.lock = folder, lock

    def _on_step(self):
        return True


def test_places_of_callbacks_are_the_new_ones(tmp_path):
    """Of SB3's without a word; of others with a warning."""

    def callbacks(name):
        evaluation = EvalCallback(make_vec_env(Chain, 1), log_path=str(tmp_path / name / "log"), eval_freq=1000)
        return [RunCheckpoint(60, tmp_path / name), evaluation, Places(str(tmp_path / name))]

    tiny(IQN, make_vec_env(Chain, 1, seed=0)).learn(90, callback=callbacks("before"))
    (tmp_path / "before").rename(tmp_path / "after")
    given = callbacks("after")
    with pytest.warns(UserWarning, match="in the checkpoint") as told:
        resume(tmp_path / "after", make_vec_env(Chain, 1, seed=0), given)
    message = [str(warning.message) for warning in told if "in the checkpoint" in str(warning.message)]
    assert len(message) == 1 and message[0].startswith("Places.save_path is")
    assert given[2].save_path == str(tmp_path / "after")
    assert given[1].log_path == str(tmp_path / "after" / "log" / "evaluations")
    assert given[0].folder == str(tmp_path / "after")


def test_a_callback_that_cannot_be_copied_loses_no_episode(tmp_path):
    """Bit for bit but for the callback."""

    def callbacks(folder, step):
        return [RunCheckpoint(60, folder), Places(None, threading.Lock()), stop_at(step)]

    def make():
        return make_vec_env(Walk, 1, seed=0)

    with pytest.warns(UserWarning, match="but perhaps not bit for bit: Places.lock cannot be copied"):
        whole = tiny(IQN, make()).learn(160, callback=callbacks(tmp_path / "whole", None))
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="Places.lock"):
        tiny(IQN, make()).learn(160, callback=callbacks(tmp_path / "parts", 130))
    resumed = resume(tmp_path / "parts", make(), callbacks(tmp_path / "parts", None))
    assert np.array_equal(resumed.replay_buffer.rewards, whole.replay_buffer.rewards)
    assert same_parameters(resumed.policy.state_dict(), whole.policy.state_dict())


def bit_flips():
    return VecMonitor(DummyVecEnv([lambda: BitFlippingEnv(n_bits=4, continuous=False, max_steps=7)]))


@pytest.mark.parametrize("kind", ["walk", "hindsight"])
def test_it_goes_on_in_the_middle_of_an_episode(kind, tmp_path):
    """The same rewards and next actions as in a run that was left alone; of hindsight also the same goals put in."""
    make = (lambda: make_vec_env(Walk, 1, seed=0)) if kind == "walk" else bit_flips
    settings = {"policy": "MultiInputPolicy", "replay_buffer_class": HerReplayBuffer} if kind == "hindsight" else {}
    whole = tiny(IQN, make(), **settings).learn(160, callback=RunCheckpoint(60, tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        tiny(IQN, make(), **settings).learn(160, callback=[RunCheckpoint(60, tmp_path / "parts"), stop_at(130)])
    assert [steps_of(path) for path in checkpoints_in(tmp_path / "parts")] == [120, 60]
    resumed = resume(tmp_path / "parts", make(), [RunCheckpoint(60, tmp_path / "parts"), stop_at(None)])
    assert resumed.num_timesteps == 160
    assert np.array_equal(resumed.replay_buffer.rewards, whole.replay_buffer.rewards)
    assert np.array_equal(resumed.replay_buffer.actions, whole.replay_buffer.actions)
    assert same_parameters(resumed.policy.state_dict(), whole.policy.state_dict())


def stop_at(step):
    def callback(locals_, globals_):
        if locals_["self"].num_timesteps == step:
            raise KeyboardInterrupt
        return True

    return ConvertCallback(callback)


def test_hindsight_of_lost_episodes_ends_there(tmp_path):
    """The environments begin anew, so goals of the new episode are none of the old one."""

    def make():
        return make_vec_env(lambda: Locked(BitFlippingEnv(n_bits=4, continuous=False, max_steps=7)), 1, seed=0)

    settings = {"policy": "MultiInputPolicy", "replay_buffer_class": HerReplayBuffer}
    with pytest.warns(UserWarning, match="from the beginning of an episode: Locked.lock cannot be copied"):
        tiny(IQN, make(), **settings).learn(75, callback=RunCheckpoint(60, tmp_path))
    buffer = resume(tmp_path, make()).replay_buffer
    starts = buffer.ep_start[:75, 0]
    assert 60 % 7 and starts[59] < 60 and buffer.ep_length[59, 0] == 60 - starts[59]
    assert (starts[60:67] == 60).all()


def test_monitor_files_of_the_same_name(tmp_path):
    def run(folder, step, go_on=False):
        env, eval_env = (make_vec_env(Chain, 1, monitor_dir=str(folder / name)) for name in ("train", "test"))
        checkpoint = RunCheckpoint(50, folder / "checkpoints")
        callback = [checkpoint, EvalCallback(eval_env, eval_freq=40, n_eval_episodes=2, verbose=0), stop_at(step)]
        try:
            if go_on:
                resume(folder / "checkpoints", env, callback)
            else:
                tiny(IQN, env).learn(150, callback=callback)
        except KeyboardInterrupt:
            pass
        env.close()
        eval_env.close()

    run(tmp_path / "whole", None)
    run(tmp_path / "parts", 120)
    run(tmp_path / "parts", None, go_on=True)
    for name in ("train", "test"):
        texts = [(tmp_path / part / name / "0.monitor.csv").read_text() for part in ("whole", "parts")]
        one, other = ([row.rsplit(",", 1)[0] for row in text.splitlines()[1:]] for text in texts)
        assert one == other and len(one) > 5


class Rolls(Chain):
    """Rewards from Python's own generator."""

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, random.random(), *rest


def test_random_numbers_of_python(tmp_path):
    whole = tiny(IQN, make_vec_env(Rolls, 1, seed=0)).learn(90, callback=RunCheckpoint(50, tmp_path))
    resumed = resume(tmp_path, make_vec_env(Rolls, 1, seed=0))
    assert np.array_equal(resumed.replay_buffer.rewards, whole.replay_buffer.rewards)


def test_lost_episodes_under_vecnormalize(tmp_path):
    """The first transition of the new episode begins with its own observation, as it was before normalisation."""

    def make(seed):
        return VecNormalize(make_vec_env("CartPole-v1", 1, seed=seed, wrapper_class=Locked))

    with pytest.warns(UserWarning, match="Locked.lock cannot be copied"):
        tiny(IQN, make(0)).learn(90, callback=RunCheckpoint(50, tmp_path))
    env, seen = make(7), []
    reset = env.reset
    env.reset = lambda: (reset(), seen.append(env.get_original_obs().copy()))[0]
    buffer = resume(tmp_path, env).replay_buffer
    first = last_checkpoint(tmp_path).meta["num_timesteps"]
    assert np.array_equal(buffer.observations[first], seen[-1])


def test_nothing_in_it_belongs_to_a_device():
    model = tiny(ORAIQN, Chain()).learn(60)
    model.act_ahead()
    callback = ConvertCallback(lambda *_: True)
    callback.init_callback(model)
    run = Run(model, callback)
    state = _Unpickler(io.BytesIO(run.state()), run.fixed).load()
    risk = state["objects"][run.objects.index(model.policy.risk)]
    assert "table" in risk and not {"_buffers", "_modules", "_parameters"} & risk.keys()
    assert np.array_equal(state["acting"].values, model._acting.values) and isinstance(state["acting"].values, np.ndarray)


def test_a_logger_given_to_the_model(tmp_path):
    lines = []
    for stop in (None, 130):
        folder = tmp_path / str(stop)
        model = tiny(ORAIQN, make_vec_env("CartPole-v1", 1, seed=0))
        model.set_logger(configure(str(folder), ["csv"]))
        try:
            model.learn(200, callback=[RunCheckpoint(60, folder / "run"), stop_at(stop)], log_interval=2)
        except KeyboardInterrupt:
            logger = configure(str(folder), ["csv"])
            callbacks = [RunCheckpoint(60, folder / "run"), stop_at(None)]
            model = resume(folder / "run", make_vec_env("CartPole-v1", 1, seed=0), callbacks, logger=logger)
            assert model.logger is logger
        model.logger.close()
        table = pd.read_csv(folder / "progress.csv")
        lines.append(table[sorted(set(table) - {"time/fps", "time/time_elapsed"})])
    pd.testing.assert_frame_equal(*lines)
    assert len(lines[0]) > 3


def logged_run(folder, go_on=False):
    """Rows of the logger's table, without times."""
    logger = configure(str(folder / "log"), ["csv"])
    env, callback = make_vec_env("CartPole-v1", 2, seed=0), [RunCheckpoint(60, folder / "checkpoints"), SetLogger(logger)]
    try:
        if go_on:
            resume(folder / "checkpoints", env, callback)
        else:
            tiny(ORAIQN, env).learn(250, callback, log_interval=2)
    except KeyboardInterrupt:
        pass
    logger.close()
    table = pd.read_csv(folder / "log" / "progress.csv")
    return table.drop(columns=["time/fps", "time/time_elapsed"])


class SetLogger(BaseCallback):
    """``learn`` makes a logger of its own for a model without one."""

    crash = False

    def __init__(self, to_use):
        super().__init__()
        self.to_use = [to_use]

    def _init_callback(self):
        self.model.set_logger(self.to_use[0])

    def _on_step(self):
        if SetLogger.crash and self.num_timesteps > 180:
            raise KeyboardInterrupt
        return True


def test_the_table_of_the_logger_goes_on(tmp_path, monkeypatch):
    whole = logged_run(tmp_path / "whole")
    monkeypatch.setattr(SetLogger, "crash", True)
    logged_run(tmp_path / "parts")
    monkeypatch.undo()
    pd.testing.assert_frame_equal(logged_run(tmp_path / "parts", go_on=True)[whole.columns], whole)
    assert len(whole) > 3


def test_arguments_of_resume_win(tmp_path, monkeypatch):
    tiny(IQN, make_vec_env(Chain, 1, seed=0)).learn(60, callback=RunCheckpoint(50, tmp_path), log_interval=3)
    seen, learn = [], IQN.learn
    monkeypatch.setattr(IQN, "learn", lambda self, *args, **kwargs: seen.append(kwargs) or learn(self, *args, **kwargs))
    resume(tmp_path, make_vec_env(Chain, 1, seed=0))
    resume(tmp_path, make_vec_env(Chain, 1, seed=0), log_interval=7)
    assert [kwargs["log_interval"] for kwargs in seen] == [3, 7]


def test_other_arguments_of_learn(tmp_path):
    message = "resume takes log_interval, tb_log_name, progress_bar of the arguments of learn, got total_timesteps=1000"
    with pytest.raises(TypeError, match=message):
        resume(tmp_path, make_vec_env(Chain, 1), total_timesteps=1000)
