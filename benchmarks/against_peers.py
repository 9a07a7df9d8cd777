"""Time of a step beside Stable-Baselines3, sb3-contrib, pfrl and tianshou, and the peak memory of each."""

import multiprocessing
from collections.abc import Sequence
from statistics import median

from benchmarks.measure import Sizes, Times, all_cases, make_learner, measure_rounds, peak_memory
from benchmarks.peers import MODULES, installed
from benchmarks.report import Row, make_row

BASE = "SB3 DQN, plain"
#: Quotients of steps that say how the learners compare, all with the same Adam
PAIRS = (
    ("IQN", "SB3 DQN"),
    ("tianshou IQN", "IQN"),
    ("pfrl IQN", "IQN"),
    ("pfrl IQN, 8 for the target", "IQN"),
    ("ORAIQN(10)", "IQN"),
    ("ORAIQN(10)", "tianshou IQN"),
)
#: The same, each with the Adam that it has if nothing is said
DEFAULT_ADAM = {"IQN": "fused", "ORAIQN(10)": "fused"}
QUANTITIES = {
    "step": "environment and gradient step",
    "clock": "the same on the clock",
    "gradient": "gradient step",
}


def quotients(rounds: Sequence[dict[str, Times]]) -> list[Row]:
    """
    :param rounds: times of each round
    :return: for each pair, the quotient of the environment and gradient steps
    """
    rows = []
    for above, below in PAIRS:
        for adam in ("plain", "fused", "default"):
            names = [f"{name}, {DEFAULT_ADAM.get(name, 'plain') if adam == 'default' else adam}" for name in (above, below)]
            if all(name in rounds[0] for name in names) and (
                adam != "default" or len({n.rpartition(", ")[2] for n in names}) == 2
            ):
                values = [times[names[0]].step / times[names[1]].step for times in rounds]
                rows.append(make_row("quotient of two learners", f"{above} / {below}, {adam} Adam", "x", values))
    return rows


def run_peers(quick: bool) -> list[Row]:
    """
    :param quick: whether few steps are enough
    :return: times of all learners, in multiples of SB3's DQN
    """
    for peer in MODULES:
        if not installed(peer):
            print(f"{peer} is not installed and is left out: see benchmarks/README.md")
    names = list(all_cases())
    sizes = Sizes(1, 1, 0, 3, 2) if quick else Sizes(2, 12, 3, 25, 15)
    rounds = measure_rounds(names, sizes)
    rows = []
    for field, quantity in QUANTITIES.items():
        for name in names:
            values = [getattr(times[name], field) / getattr(times[BASE], field) for times in rounds]
            ms = median(getattr(times[name], field) for times in rounds)
            rows.append(make_row(quantity, name, f"x of {BASE} Adam", values, ms=ms))
    return [*rows, *quotients(rounds)]


def memory_of(name: str | None, n: int) -> float:
    """
    :param name: name of a case; None for the imports alone
    :param n: number of steps it takes before, after the random ones
    :return: the peak memory of this process in MiB
    """
    if name is not None:
        make_learner(name, 0).steps(n)
    return peak_memory()


def run_memory(quick: bool) -> list[Row]:
    """
    :param quick: whether one learner is enough
    :return: peak memory of a new interpreter for each learner
    """
    names: list[str | None] = [None, *(name for name in all_cases() if name.endswith("fused"))]
    if quick:
        names = [None, "IQN, fused"]
    rows = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in names:
            value = pool.apply(memory_of, (name, 20 if quick else 300))
            rows.append(make_row("peak memory of a process", name or "imports alone", "MiB", [value]))
    return rows
