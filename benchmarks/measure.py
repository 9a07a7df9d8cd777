"""How times are taken: learners take turns, each in a process of its own, or all in this one."""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch as th

from benchmarks.learners import learner_cases
from benchmarks.peers import peer_cases
from benchmarks.work import Learner, Make

#: What processes have imported before they are made, so that none waits for it
PRELOADED = ["benchmarks.measure", "sb3_ora", "pfrl.agents.iqn", "tianshou.algorithm.modelfree.iqn"]
#: Steps at the start of a turn that are not timed: the first and the last of a round have two turns in a row, and would find
#: in the processor's caches what they need
SETTLE = 5
T = TypeVar("T")


class Sizes(NamedTuple):
    """How much is measured."""

    processes: int  # of each learner, one after the other
    rounds: int  # turns of each process, after one that is not timed
    settle: int  # environment steps at the start of a turn that are not timed
    steps: int  # environment steps that are
    gradients: int  # gradient steps


class Times(NamedTuple):
    """Milliseconds per step, of one thread that never waits: processor time is what the clock shows on an idle machine."""

    step: float  # environment step and gradient step, in processor time
    clock: float  # the same on the clock
    gradient: float  # gradient step, in processor time


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


def rounds_of(turns: Mapping[str, Callable[[], T]], n: int) -> list[dict[str, T]]:
    """
    :param turns: what takes turns, by name
    :param n: number of rounds, after one that does not count
    :return: what each turn returned, for each round. Every other round goes backwards, so that none gains by its place.
    """
    names = list(turns)
    results = []
    for i in range(n + 1):
        results.append({name: turns[name]() for name in (names if i % 2 else reversed(names))})
    return results[1:]


def take_turns(runs: Mapping[str, Callable[[int], object]], n: int, rounds: int) -> list[dict[str, float]]:
    """
    :param runs: what to time in this process, by name: each takes a number of steps
    :param n: steps per turn, after some that do not count
    :param rounds: turns, after one that does not count
    :return: processor milliseconds per step, for each round
    """

    def turn(run: Callable[[int], object]) -> tuple[float, float]:
        run(SETTLE)
        return timed(partial(run, n), n)

    times = rounds_of({name: partial(turn, run) for name, run in runs.items()}, rounds)
    return [{name: processor for name, (_, processor) in turn.items()} for turn in times]


def make_learner(name: str, seed: int) -> Learner:
    """
    :param name: name of a case
    :param seed: seed
    :return: the learner after its random steps, on one thread of this process
    """
    th.set_num_threads(1)
    th.manual_seed(seed)
    np.random.seed(seed)
    learner = all_cases()[name](seed)
    learner.warm_up()
    return learner


def take_turn(learner: Learner, sizes: Sizes) -> Times:
    """
    :param learner: a learner after its random steps
    :param sizes: how much to measure
    :return: its times
    """
    learner.steps(sizes.settle)
    clock, step = timed(partial(learner.steps, sizes.steps), sizes.steps)
    _, gradient = timed(lambda: [learner.gradient() for _ in range(sizes.gradients)], sizes.gradients)
    return Times(step, clock, gradient)


def _serve(connection: Connection, name: str, seed: int, sizes: Sizes) -> None:
    """The process of a learner: takes a turn whenever it is told to go on."""
    learner = make_learner(name, seed)
    connection.send(None)
    while connection.recv():
        connection.send(take_turn(learner, sizes))


def _forkserver() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def in_new_process(function: Callable[..., T], *args: Any) -> T:
    """
    :param function: a function
    :param args: its arguments
    :return: what it returns, in a process that imported everything and made nothing before
    """
    with _forkserver().Pool(1) as pool:
        return pool.apply(function, args)


@contextmanager
def own_process(name: str, seed: int, sizes: Sizes) -> Iterator[Callable[[], Times]]:
    """
    :param name: name of a case
    :param seed: seed
    :param sizes: how much to measure in a turn
    :return: what lets it take a turn, in a process of its own that imported everything and made nothing before
    """
    context = _forkserver()
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, name, seed, sizes), daemon=True)
    process.start()
    there.close()

    def answer() -> Times:
        try:
            return here.recv()
        except EOFError:
            raise RuntimeError(f"the process of {name!r} ended early: its error is printed above") from None

    def turn() -> Times:
        here.send(True)
        return answer()

    try:
        answer()
        yield turn
    finally:
        process.terminate()
        process.join()
        here.close()


def measure_rounds(names: list[str], sizes: Sizes) -> list[dict[str, Times]]:
    """
    :param names: names of cases
    :param sizes: how much to measure
    :return: their times in each round, in which they take turns
    """
    results = []
    for seed in range(sizes.processes):
        with ExitStack() as stack:
            turns = {name: stack.enter_context(own_process(name, seed, sizes)) for name in names}
            results += rounds_of(turns, sizes.rounds)
    return results


def peak_memory() -> float:
    """
    :return: the largest memory this process has had, in MiB
    """
    status = Path("/proc/self/status")
    if status.exists():  # what getrusage tells on Linux begins with the memory of the process that started this one
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
