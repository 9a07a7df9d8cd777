"""The same seed gives the same training, another seed another."""

import gymnasium as gym
import pytest

from tests.tiny import ALGORITHMS, same_parameters, several, tiny
from tests.toy_envs import Gamble


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
