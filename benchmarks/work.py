"""The work that all learners do, and what the benchmark asks of a learner."""

from collections.abc import Callable
from typing import NamedTuple

import gymnasium as gym

BUFFER = 50_000
WARM_UP = 1_000
BATCH = 64
TARGET_COPY = 500
EPSILON = 0.1
GAMMA = 0.99
LEARNING_RATE = 1e-3
WIDTH = 128
N_COSINES = 64
N_QUANTILES = 8  # N and N'
N_ACTING = 32
N_HEADS = 10
HEAD_WIDTH = 64  # of each head of an ensemble


class Learner(NamedTuple):
    """A learner on CartPole-v1."""

    warm_up: Callable[[], object]  # takes the first WARM_UP steps at random, without gradient steps
    steps: Callable[[int], object]  # takes so many environment steps, each followed by a gradient step
    gradient: Callable[[], object]  # takes one gradient step: replay sampling, loss, optimizer


Make = Callable[[int], Learner]  # takes a seed


def cart_pole() -> gym.Env:
    """
    :return: CartPole-v1 with the wrappers that ``gymnasium.make`` gives it
    """
    return gym.make("CartPole-v1")
