"""
Speed of environments with random actions, in multiples of CartPole-v1's: the four Knapsack problems with 50 items, and
the Nano Drone with 6 obstacles, one and 64 at once.

All take turns, in processor time, which a busy machine changes less than time on the clock. Resets count. ``as arrays``
is what all forms of the Nano Drone are made of; the others come with what their interfaces ask for: observations, infos.
"""

import importlib.util
from collections.abc import Callable
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.measure import take_turns
from benchmarks.report import Row, make_row
from sb3_ora.envs import KnapsackEnv, NanoDroneEnv, NanoDroneVecEnv, NanoDroneVectorEnv
from sb3_ora.envs.nano_drone.config import REACHED, NanoDroneConfig
from sb3_ora.envs.nano_drone.core import NanoDroneCore
from sb3_ora.envs.nano_drone.layouts import Layout

N_DRONES = 64
LAYOUT: dict[str, Any] = {"n_obstacles": 6, "mode": "eval"}
CART_POLE = "CartPole-v1"
Loop = Callable[[int], None]  # takes so many steps


def single(env: gym.Env, n_actions: int) -> Loop:
    """
    :param env: an environment
    :param n_actions: number of its actions
    :return: a loop of random steps
    """
    actions = np.random.default_rng(0).integers(0, n_actions, 4096)
    env.reset(seed=0)

    def loop(n: int) -> None:
        for i in range(n):
            _, _, terminated, truncated, _ = env.step(actions[i % 4096])
            if terminated or truncated:
                env.reset()

    return loop


def knapsack(version: int) -> Loop:
    """
    :param version: which problem, 0 to 3
    :return: a loop of random steps; valid actions are not looked for, so that an episode ends at the first that is not
    """
    env = KnapsackEnv(version)
    return single(env, int(env.action_space.n))


def arrays(compiled: bool | None, resets: bool) -> Loop:
    """
    :param compiled: whether to use numba; None where it is installed
    :param resets: whether drones begin anew when their episode ends; otherwise they fly on
    :return: a loop of random steps of many drones
    """
    core = NanoDroneCore(N_DRONES, NanoDroneConfig(**LAYOUT), compiled)
    generators = [np.random.default_rng(i) for i in range(N_DRONES)]
    actions = np.random.default_rng(0).integers(0, 12, (256, N_DRONES))
    for drone, generator in enumerate(generators):
        core.reset(drone, generator, Layout())

    def loop(n: int) -> None:
        for i in range(n // N_DRONES):
            core.step(actions[i % 256])
            core.observations()
            if resets:
                for drone in np.flatnonzero(core.outcomes >= REACHED).tolist():
                    core.reset(drone, generators[drone], Layout())

    return loop


def many(env: NanoDroneVectorEnv | NanoDroneVecEnv) -> Loop:
    """
    :param env: many drones
    :return: a loop of random steps
    """
    actions = np.random.default_rng(0).integers(0, 12, (256, N_DRONES))
    env.reset()

    def loop(n: int) -> None:
        for i in range(n // N_DRONES):
            env.step(actions[i % 256])

    return loop


def make_loops() -> dict[str, Loop]:
    """
    :return: what is measured, by name, CartPole first
    """
    loops = {
        CART_POLE: single(gym.make(CART_POLE).unwrapped, 2),
        **{f"Knapsack-v{version}": knapsack(version) for version in range(4)},
        "NanoDrone-v0": single(NanoDroneEnv(**LAYOUT), 12),
        "NanoDrone-v0, 64 as arrays, no resets": arrays(None, resets=False),
        "NanoDrone-v0, 64 as arrays": arrays(None, resets=True),
        "NanoDrone-v0, 64 in a VectorEnv": many(NanoDroneVectorEnv(N_DRONES, **LAYOUT)),
        "NanoDrone-v0, 64 in a VecEnv of SB3": many(NanoDroneVecEnv(N_DRONES, **LAYOUT)),
    }
    if importlib.util.find_spec("numba") is not None:
        loops["NanoDrone-v0, 64 as arrays, without numba"] = arrays(False, resets=True)
    return loops


def run_environments(quick: bool) -> list[Row]:
    """
    :param quick: whether a few steps are enough
    :return: speed of each environment
    """
    n, rounds = (N_DRONES, 3) if quick else (40 * N_DRONES, 21)
    loops = make_loops()
    times = take_turns(loops, n, rounds)
    rows = []
    for name in loops:
        values = [turn[CART_POLE] / turn[name] for turn in times]
        rows.append(make_row("speed", name, f"x of {CART_POLE}", values, ms=median(turn[name] for turn in times)))
    return rows
