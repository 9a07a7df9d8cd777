"""How times are taken: fresh processes in interleaved rounds, or learners that take turns in this one."""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch as th

from benchmarks.learners import learner_cases
from benchmarks.peers import peer_cases
from benchmarks.work import Make

#: What processes have imported before they are made, so that no measurement waits for it
PRELOADED = ["benchmarks.measure", "sb3_ora", "pfrl.agents.iqn", "tianshou.algorithm.modelfree.iqn"]


class Sizes(NamedTuple):
    """How much is measured."""

    rounds: int
    settle: int  # steps that are not timed
    steps: int
    gradients: int


class Times(NamedTuple):
    """Milliseconds per step."""

    step: float  # environment step and gradient step, on the clock
    step_cpu: float  # the same in processor time
    gradient: float


def all_cases() -> dict[str, Make]:
    """
    :return: makers of everything that can be measured here, by name
    """
    return {**learner_cases(), **peer_cases()}


def timed(run: Callable[[], object], n: int) -> tuple[float, float]:
    """
    :param run: what to time
    :param n: number of steps it takes
    :return: milliseconds per step, on the clock and in processor time
    """
    clock, processor = time.perf_counter(), time.process_time()
    run()
    return 1e3 * (time.perf_counter() - clock) / n, 1e3 * (time.process_time() - processor) / n


def measure(name: str, seed: int, sizes: Sizes) -> Times:
    """
    :param name: name of a case
    :param seed: seed
    :param sizes: how much to measure
    :return: its times, measured in this process
    """
    th.set_num_threads(1)
    th.manual_seed(seed)
    np.random.seed(seed)
    learner = all_cases()[name](seed)
    learner.warm_up()
    learner.steps(sizes.settle)
    step, step_cpu = timed(lambda: learner.steps(sizes.steps), sizes.steps)
    gradient, _ = timed(lambda: [learner.gradient() for _ in range(sizes.gradients)], sizes.gradients)
    return Times(step, step_cpu, gradient)


def measure_rounds(names: list[str], sizes: Sizes) -> Iterator[dict[str, Times]]:
    """
    :param names: names of cases, measured one after the other, each in a process of its own that has imported everything
        and made nothing
    :param sizes: how much to measure
    :return: the times of each round as it is finished
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with context.Pool(1, maxtasksperchild=1) as pool:
        for seed in range(sizes.rounds):
            yield {name: pool.apply(measure, (name, seed, sizes)) for name in names}


def take_turns(runs: Mapping[str, Callable[[int], object]], n: int, rounds: int) -> list[dict[str, float]]:
    """
    :param runs: what to time, by name: each takes a number of steps
    :param n: steps per turn
    :param rounds: turns, after one that is not timed
    :return: processor milliseconds per step, for each round
    """
    times = [{name: timed(lambda run=run: run(n), n)[1] for name, run in runs.items()} for _ in range(rounds + 1)]
    return times[1:]


def peak_memory() -> float:
    """
    :return: the largest memory this process has had, in MiB
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
