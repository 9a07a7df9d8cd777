"""What a step costs with more heads, larger batches, more environments, finer grids and more keys."""

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from benchmarks.learners import as_learner, make_ours
from benchmarks.measure import in_new_process, take_turns
from benchmarks.report import Row, make_row
from benchmarks.work import BATCH, N_HEADS, WARM_UP
from sb3_ora.iqn.iqn import IQN

HEADS = (1, 2, 4, 8, 10, 16, 32)
BATCHES = (8, 16, 32, 64, 128, 256)
N_ENVS = (1, 2, 4, 8, 16, 32, 64)
ALPHA_STEPS = {19: 0.05, 91: 0.01}
KEYS = (10**2, 10**3, 10**4, 10**5, 10**6)
#: Steps that an aged learner looks back on
AGE = 10**6
ADAPTATION_PROCESSES = 6


def ready(model: OffPolicyAlgorithm) -> Callable[[int], object]:
    """
    :param model: a learner that has taken no step
    :return: what takes so many steps of it, after the random ones
    """
    learner = as_learner(model)
    learner.warm_up()
    return learner.steps


def curve(quantity: str, case: str, models: dict[int, OffPolicyAlgorithm], base: int, n: int, rounds: int) -> list[Row]:
    """
    :param quantity: what is varied
    :param case: name of the learner
    :param models: learners by the value of that
    :param base: value whose step is the unit
    :param n: steps per turn
    :param rounds: turns
    :return: processor time per step at each value
    """
    times = take_turns({str(x): ready(model) for x, model in models.items()}, n, rounds)
    rows = []
    for x in models:
        values = [turn[str(x)] / turn[str(base)] for turn in times]
        rows.append(make_row(quantity, case, f"x of the step at {base}", values, x, median(turn[str(x)] for turn in times)))
    return rows


def run_curves(quick: bool) -> list[Row]:
    """
    :param quick: whether few values and steps are enough
    :return: cost of a step (an environment step of each environment, a gradient step) on the CPU
    """
    n, rounds = (2, 2) if quick else (10, 25)

    def some(values: tuple[int, ...], base: int) -> list[int]:
        return [x for x in values if not quick or x in (values[0], base)]

    heads = {k: make_ours(k, head_width=64) for k in some(HEADS, N_HEADS)}
    rows = curve("number of heads", "IQN and ORAIQN", heads, N_HEADS, n, rounds)
    for name, k in (("IQN", 1), (f"ORAIQN({N_HEADS})", N_HEADS)):
        batches = {batch: make_ours(k, batch=batch) for batch in some(BATCHES, BATCH)}
        rows += curve("batch size", name, batches, BATCH, n, rounds)
    for name, k in (("IQN", 1), (f"ORAIQN({N_HEADS})", N_HEADS)):
        several = {n_envs: make_ours(k, n_envs=n_envs) for n_envs in some(N_ENVS, 4)}
        rows += curve("number of environments", name, several, 1, n, rounds)
    return rows


# Adaptation


def fill_table(model: IQN, n_keys: int) -> None:
    """
    Fill the table of risk levels, so that each key that is new from now on drops an old one.

    :param model: an ORAIQN whose ``max_keys`` is ``n_keys``
    :param n_keys: number of keys
    """
    table = model.policy.risk.table
    assert table is not None and table.max_keys == n_keys
    # Keys that no state has: those are below 2**48 times the number of actions
    table.rows(-1 - np.random.default_rng(0).permutation(n_keys))
    assert len(table) == n_keys


def age(model: IQN) -> None:
    """
    Put everything that grows with training where it is after a million steps: replay buffer and table are full, and the
    counters high.

    :param model: an ORAIQN after its random steps
    """
    buffer, table = model.replay_buffer, model.policy.risk.table
    assert buffer is not None and table is not None
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        array = getattr(buffer, name)
        array[:] = np.resize(array[:WARM_UP], array.shape)
    buffer.full = True
    fill_table(model, table.max_keys)
    table.column("loss_count")[:] = AGE
    model._n_updates = model._n_calls = model.num_timesteps = AGE


def adaptation_models(quick: bool, seed: int) -> dict[str, OffPolicyAlgorithm]:
    """
    :param quick: whether few learners are enough
    :param seed: their seed
    :return: ORAIQNs by name, the one without adaptation first
    """

    def make(**arguments: Any) -> OffPolicyAlgorithm:
        return make_ours(N_HEADS, seed=seed, **arguments)

    models = {"Composite": make(risk_adapter="composite")}
    models |= {f"grid of {size} levels": make(alpha_step=step) for size, step in ALPHA_STEPS.items()}
    for n_keys in KEYS[:1] if quick else KEYS:
        models[f"table full with {n_keys} keys"] = make(max_keys=n_keys)
    return {**models, f"as after {AGE} steps": make()}


def adaptation_times(quick: bool, seed: int) -> list[dict[str, float]]:
    """
    :param quick: whether few learners and steps are enough
    :param seed: seed of the learners
    :return: milliseconds per step of all learners, for each round
    """
    n, rounds = (2, 2) if quick else (5, 30)
    th.set_num_threads(1)
    models = adaptation_models(quick, seed)
    runs = {name: ready(model) for name, model in models.items()}
    for name, model in models.items():
        assert isinstance(model, IQN)
        if name.startswith("table full"):
            fill_table(model, model.max_keys)  # type: ignore[attr-defined]
        if name.startswith("as after"):
            age(model)
    return take_turns(runs, n, rounds)


def run_adaptation(quick: bool) -> list[Row]:
    """
    :param quick: whether few learners and steps are enough
    :return: what adaptation adds to the step of the same ensemble without it
    """
    if quick:
        times = adaptation_times(quick, 0)
    else:  # where in memory things are matters, and differs from process to process
        times = [turn for seed in range(ADAPTATION_PROCESSES) for turn in in_new_process(adaptation_times, quick, seed)]
    rows = []
    for name in list(times[0])[1:]:
        values = [100 * (turn[name] / turn["Composite"] - 1) for turn in times]
        rows.append(make_row("adaptation", name, "% of the step without it", values, ms=median(turn[name] for turn in times)))
    return rows
