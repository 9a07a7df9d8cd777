"""Where the time of a gradient step and of an environment step goes: stages, torch's operations, and Python's functions."""

import cProfile
import pstats
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.learners import as_learner, gradient_steps, make_ours
from benchmarks.measure import timed
from benchmarks.report import Row, make_row
from benchmarks.work import N_HEADS
from sb3_ora.iqn import adam, by_hand, iqn
from sb3_ora.iqn.iqn import IQN

SHOWN = 14  # operations and functions


def without_gradients(model: IQN) -> None:
    """
    Let the learner believe that it takes gradient steps, so that adaptation does its work.

    :param model: a learner
    """

    def train(gradient_steps: int, batch_size: int = 100) -> None:
        model._n_updates += gradient_steps

    model.train = train  # type: ignore[method-assign]


def stages_of(model: IQN) -> list[tuple[Any, str]]:
    """
    :param model: a learner
    :return: the functions that a step of it consists of, each as its owner and its name
    """
    risk, env = model.policy.risk, model.env
    stages: list[tuple[Any, str]] = [
        (model, "collect_rollouts"),
        (model.adapter, "on_rollout_start"),
        (model, "act_ahead"),
        (model.policy, "greedy_actions"),
        (risk, "state_keys"),
        (risk, "alphas"),
        (env, "step"),
        (model, "_store_transition"),
        (model, "train"),
        (model.replay_buffer, "sample"),
        (model, "_target_quantiles"),
        (model, "_draw_taus"),
        (by_hand, "layers_of"),
        (by_hand, "evaluate"),
        (model, "_loss"),
        (by_hand, "differentiate"),
        (iqn, "check_update"),
        (adam, "step"),
    ]
    return [*stages, (model.adapter, "_compare")] if hasattr(model.adapter, "_compare") else stages


@contextmanager
def own_times(watched: list[tuple[Any, str]]) -> Iterator[dict[str, float]]:
    """
    :param watched: functions, each as its owner and its name
    :return: the time that each takes while this lasts, without what it spends in others of them, in seconds
    """
    times: dict[str, float] = defaultdict(float)
    within = [0.0]  # time spent in functions called by the present one, by the one around it, ...

    def timer(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            within.append(0.0)
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                taken = time.perf_counter() - start
                times[name] += taken - within.pop()
                within[-1] += taken

        return call

    before = [(owner, name, getattr(owner, name), name in vars(owner)) for owner, name in watched]
    for owner, name, function, _ in before:
        module = getattr(owner, "__name__", type(owner).__name__).rpartition(".")[2]
        setattr(owner, name, timer(function, f"{module}.{name}"))
    try:
        yield times
    finally:
        for owner, name, function, own in before:
            if own:
                setattr(owner, name, function)
            else:
                delattr(owner, name)


def stages(what: str, model: IQN, run: Callable[[], object], n: int) -> list[Row]:
    """
    :param what: name of the step
    :param model: the learner
    :param run: takes n steps of it
    :param n: number of steps
    :return: share of each stage in the step's time, without what it calls of the others, the largest first
    """
    with own_times(stages_of(model)) as times:
        ms, _ = timed(run, n)
    shares = {name: 1e5 * taken / (n * ms) for name, taken in times.items()}
    rest = {"outside of these": 100 - sum(shares.values())}
    quantity = f"{what}, stages"
    named = sorted(shares.items(), key=lambda entry: entry[1], reverse=True)
    return [make_row(quantity, name, "% of the step", [share], ms=share * ms / 100) for name, share in [*named, *rest.items()]]


def operations(what: str, run: Callable[[], object], n: int) -> list[Row]:
    """
    :param what: name of the step
    :param run: takes n steps
    :param n: number of steps
    :return: share of each torch operation in the step's time, the largest first, and what they leave to Python and NumPy
    """
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        ms, _ = timed(run, n)
    events = [event for event in profiler.key_averages() if event.device_type == DeviceType.CPU]
    events.sort(key=lambda event: event.self_cpu_time_total, reverse=True)
    shares = {event.key: 0.1 * event.self_cpu_time_total / (n * ms) for event in events}  # microseconds to percent

    def row(name: str, share: float) -> Row:
        return make_row(f"{what}, torch's operations", name, "% of the step while profiled", [share], ms=share * ms / 100)

    shown = [row(f"{event.key} ({event.count / n:.3g} calls)", shares[event.key]) for event in events[:SHOWN]]
    left = sum(shares[event.key] for event in events[SHOWN:])
    rest = row(f"{max(len(events) - SHOWN, 0)} further operations", left)
    return [*shown, rest, row("outside: Python, NumPy, other libraries", 100 - sum(shares.values()))]


def functions(what: str, run: Callable[[], object]) -> list[Row]:
    """
    :param what: name of the step
    :param run: takes steps
    :return: share of the functions that take the most time, with what they call, but for those around everything
    """
    profiler = cProfile.Profile()
    profiler.runcall(run)
    stats: dict[tuple[str, int, str], Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    total = sum(own for _, _, own, _, _ in stats.values())
    named = [
        (f"{Path(file).stem}.{name}", total_time) for (file, line, name), (_, _, _, total_time, _) in stats.items() if line
    ]
    inner = sorted((entry for entry in named if entry[1] < 0.9 * total), key=lambda entry: entry[1], reverse=True)
    quantity = f"{what}, Python's functions with what they call"
    return [make_row(quantity, name, "% of the step while profiled", [100 * time / total]) for name, time in inner[:SHOWN]]


def run_profile(quick: bool) -> list[Row]:
    """
    :param quick: whether few steps are enough
    :return: shares of the time of IQN's and ORAIQN's steps
    """
    n = 3 if quick else 200
    rows = []
    for name, k in (("IQN", 1), (f"ORAIQN({N_HEADS})", N_HEADS)):
        model = make_ours(k)
        assert isinstance(model, IQN)
        learner = as_learner(model)
        learner.warm_up()
        learner.steps(n)

        rows += stages(f"step of {name}", model, partial(learner.steps, n), n)
        gradients = partial(gradient_steps, model, n)
        rows += operations(f"gradient step of {name}", gradients, n) + functions(f"gradient step of {name}", gradients)
        without_gradients(model)
        steps = partial(learner.steps, n)
        rows += operations(f"environment step of {name}", steps, n) + functions(f"environment step of {name}", steps)
    return rows
