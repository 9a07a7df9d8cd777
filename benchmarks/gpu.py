"""
The network for Atari games on a card: time of a gradient step, and environment steps per second of the whole loop.

The convolutions of NatureCNN (3136 features, as in the IQN paper; Stable-Baselines3 adds a layer of 512), 64 cosines, heads
3136 -> 512 -> 6, batch 32, N = N' = 8. A gradient step includes replay sampling and the copy to the card. "No graph" is the
same learner without CUDA graphs. The loop has 8 environments and a gradient step for every fourth environment step; without
``--game`` they return random frames at once, so that the learner is what is measured.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib import QRDQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack
from torch import nn

from benchmarks.learners import gradient_steps
from benchmarks.measure import rounds_of
from benchmarks.report import Row, make_row
from sb3_ora import IQN, ORAIQN

BASE = "QR-DQN(200)"


class Sizes(NamedTuple):
    """What is measured; the tests make all of it small."""

    heads: tuple[int, ...] = (1, 10, 32)
    head_width: int = 512
    pixels: int = 84
    batch: int = 32
    n_envs: int = 8
    transitions: int = 4_000  # in the replay buffer
    warm_up: int = 50  # gradient steps that are not timed
    gradients: int = 100  # gradient steps in a turn
    steps: int = 400  # steps of all environments in a turn
    rounds: int = 9


QUICK = Sizes((1, 2), 16, 36, 4, 2, 40, 1, 2, 4, 2)


class Frames(gym.Env):
    """
    Looks like an Atari game with four stacked frames and 6 actions, and costs nothing.

    :param pixels: height and width of a frame
    """

    def __init__(self, pixels: int):
        self.observation_space = spaces.Box(0, 255, (4, pixels, pixels), np.uint8)
        self.action_space = spaces.Discrete(6)
        self.frames = np.random.default_rng(0).integers(0, 256, (64, 4, pixels, pixels), dtype=np.uint8)
        self.n_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        return self.frames[self.n_steps % 64], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        return self.frames[self.n_steps % 64], float(self.n_steps % 7 == 0), self.n_steps % 1000 == 0, False, {}


class Convolutions(NatureCNN):
    """
    NatureCNN without its last, linear layer.

    :param observation_space: images
    """

    def __init__(self, observation_space: spaces.Box):
        super().__init__(observation_space)
        self._features_dim = int(self.linear[0].in_features)  # type: ignore[arg-type]
        self.linear = nn.Sequential()


def make_envs(game: str | None, sizes: Sizes) -> VecEnv:
    """
    :param game: id of an Atari game, such as "PongNoFrameskip-v4"; None for random frames
    :param sizes: number of environments and of pixels
    :return: the environments
    """
    if game is None:
        return DummyVecEnv([lambda: Frames(sizes.pixels)] * sizes.n_envs)
    return VecFrameStack(make_atari_env(game, sizes.n_envs, seed=0), 4)


def make_models(game: str | None, device: str, sizes: Sizes) -> dict[str, OffPolicyAlgorithm]:
    """
    :param game: as in :func:`make_envs`
    :param device: a torch device
    :param sizes: sizes of networks and replay buffers
    :return: learners with filled replay buffers, by name
    """
    common: dict[str, Any] = {
        "buffer_size": sizes.transitions,
        "learning_starts": sizes.transitions,
        "batch_size": sizes.batch,
        "train_freq": 1,
        "gradient_steps": max(1, sizes.n_envs // 4),
        "exploration_initial_eps": 0.05,
        "exploration_final_eps": 0.05,
        "device": device,
        "seed": 0,
    }
    heads: dict[str, Any] = {"policy_kwargs": {"features_extractor_class": Convolutions, "head_arch": [sizes.head_width]}}
    models: dict[str, OffPolicyAlgorithm] = {BASE: QRDQN("CnnPolicy", make_envs(game, sizes), **common)}
    for k in sizes.heads:
        for suffix, graphs in (("", True), (", no graph", False)):
            settings = {**common, **heads, "cuda_graphs": graphs}
            if k == 1:
                models[f"IQN{suffix}"] = IQN("CnnPolicy", make_envs(game, sizes), **settings)
            else:
                models[f"ORAIQN({k}){suffix}"] = ORAIQN("CnnPolicy", make_envs(game, sizes), n_heads=k, **settings)
    for model in models.values():
        model.learn(sizes.transitions, log_interval=None)  # type: ignore[arg-type]
    return models


def check_graphs(models: Mapping[str, OffPolicyAlgorithm]) -> None:
    """
    :param models: learners after their first gradient steps, by name
    :raises RuntimeError: if one that should have recorded its updates has not, so that its numbers would mean something else
    """
    for name, model in models.items():
        updates = getattr(model, "_recorded_updates", None)
        if updates is not None and not updates.recordings:
            raise RuntimeError(f"{name} has not recorded its updates as a CUDA graph")


def environment_steps(model: OffPolicyAlgorithm, n: int) -> None:
    """
    :param model: a learner
    :param n: number of steps to take in every environment, with the gradient steps that are due
    """
    model.learn(n * model.n_envs, log_interval=None, reset_num_timesteps=False)  # type: ignore[arg-type]


def device_ms(run: Callable[[OffPolicyAlgorithm, int], object], model: OffPolicyAlgorithm, n: int, device: str) -> float:
    """
    :param run: what to time, takes a learner and a number of steps
    :param model: the learner
    :param n: number of steps
    :param device: the device it runs on
    :return: milliseconds per step, between two CUDA events on a card and on the clock otherwise
    """
    if th.device(device).type != "cuda":
        start = time.perf_counter()
        run(model, n)
        return 1e3 * (time.perf_counter() - start) / n
    first, last = th.cuda.Event(enable_timing=True), th.cuda.Event(enable_timing=True)
    with th.cuda.device(device):
        th.cuda.synchronize()
        first.record()
        run(model, n)
        last.record()
        last.synchronize()
    return first.elapsed_time(last) / n


def run_gpu(quick: bool, device: str, game: str | None = None) -> list[Row]:
    """
    :param quick: whether small networks and few steps are enough
    :param device: a torch device
    :param game: as in :func:`make_envs`
    :return: milliseconds per gradient step and environment steps per second, in all environments together
    """
    sizes = QUICK if quick else Sizes()
    models = make_models(game, device, sizes)
    for model in models.values():
        gradient_steps(model, sizes.warm_up)
    if not quick:
        check_graphs(models)
    gradients, steps = (
        rounds_of({name: partial(device_ms, run, model, n, device) for name, model in models.items()}, sizes.rounds)
        for run, n in ((gradient_steps, sizes.gradients), (environment_steps, sizes.steps))
    )
    loop = f"steps per second of {sizes.n_envs} environments, {game or 'random frames'}"
    rows = [make_row("gradient step", name, "ms", [turn[name] for turn in gradients]) for name in models]
    rows += [make_row("gradient step", name, "x of IQN", [turn[name] / turn["IQN"] for turn in gradients]) for name in models]
    return rows + [make_row(loop, name, "1/s", [1e3 * sizes.n_envs / turn[name] for turn in steps]) for name in models]
