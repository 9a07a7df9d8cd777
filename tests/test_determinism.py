"""The same seed gives the same training, another seed another."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest
import torch as th
from gymnasium import spaces

from tests.tiny import ALGORITHMS, same_parameters, several, tiny
from tests.toy_envs import AnySpace, Gamble


def train(algorithm, env, n_envs, seed):
    return tiny(algorithm, several(env, n_envs), seed=seed).learn(80).get_parameters()


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("env", [Gamble, lambda: gym.make("CartPole-v1")], ids=["Gamble", "CartPole"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_seeds(algorithm, env, n_envs):
    first, again, other = (train(algorithm, env, n_envs, seed) for seed in (3, 3, 4))
    assert same_parameters(first, again)
    assert not same_parameters(first["policy"], other["policy"])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_seed_set_at_random(algorithm):
    assert not same_parameters(*(train(algorithm, Gamble, 1, None)["policy"] for _ in range(2)))


def digest() -> str:
    """Of the weights of all four algorithms after a short training with Dict observations, whose keys are strings."""
    space = spaces.Dict({name: spaces.Box(-1, 1, (2,)) for name in ("near", "far", "left", "right")})
    found = hashlib.sha256()
    for algorithm in ALGORITHMS:
        model = tiny(algorithm, several(lambda: AnySpace(space), 2), "MultiInputPolicy", seed=3).learn(80)
        for name, value in sorted(model.policy.state_dict().items()):
            found.update(name.encode() + value.numpy().tobytes())
    return found.hexdigest()


def test_hash_seeds_of_python_do_not_matter():
    """Nor does the process: one with another hash seed ends with the weights of this one."""
    code = "import torch; torch.set_num_threads(1); from tests.test_determinism import digest; print(digest())"
    path = os.pathsep.join(part for part in (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")) if part)
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    other = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
    threads = th.get_num_threads()
    th.set_num_threads(1)
    try:
        here = digest()
    finally:
        th.set_num_threads(threads)
    assert other.communicate()[0].split()[-1] == here
