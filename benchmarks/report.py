"""Results as a table on the terminal, a CSV file and a plot, each of which names its machine."""

import csv
import math
import os
import platform
from collections.abc import Sequence
from datetime import date
from itertools import accumulate, groupby
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch as th

RESULTS = Path(__file__).parent / "results"


class Row(NamedTuple):
    """One result."""

    quantity: str
    case: str
    unit: str
    median: float
    median_low: float  # 95 % interval of the median, for rounds that do not depend on each other
    median_high: float
    low: float  # of single rounds
    high: float
    rounds: int
    x: float | None = None  # where the case is a curve, the place on it
    ms: float | None = None  # milliseconds here; shown and not saved, because they mean little on another machine


def make_row(
    quantity: str, case: str, unit: str, values: Sequence[float], x: float | None = None, ms: float | None = None
) -> Row:
    """
    :param quantity: what was measured
    :param case: of what
    :param unit: unit of the values
    :param values: one for each round
    :param x: place on a curve
    :param ms: median time in milliseconds
    :return: the values' median with its interval, and their range
    """
    ordered = sorted(values)
    outside = outside_interval(len(ordered))
    interval = ordered[outside], ordered[-1 - outside]
    return Row(quantity, case, unit, median(ordered), *interval, ordered[0], ordered[-1], len(ordered), x, ms)


def outside_interval(n: int) -> int:
    """
    :param n: number of values
    :return: how many on either side may be left out, so that the rest spans the median of what they are drawn from with a
        probability of 95 % (the number below it is binomial); 0 where there are too few values for that
    """
    tails = accumulate(math.comb(n, below) / 2**n for below in range(n // 2))  # P(at most so many are below)
    return max(0, sum(tail <= 0.025 for tail in tails) - 1)


def cpu_model() -> str:
    """
    :return: name of the processor
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine(device: str = "cpu") -> str:
    """
    :param device: a torch device
    :return: what the results depend on: processor, number of cores, card, and versions
    """
    card = ""
    if th.device(device).type == "cuda":
        precision = "TF32" if th.backends.cudnn.allow_tf32 else "float32"
        kind = "deterministic " if th.backends.cudnn.deterministic else ""
        card = f"{th.cuda.get_device_name(device)}, CUDA {th.version.cuda}, {kind}convolutions in {precision}, "
    return f"{card}{cpu_model()}, {os.cpu_count()} cores, torch {th.__version__}, Python {platform.python_version()}"


def print_rows(rows: Sequence[Row], device: str = "cpu") -> None:
    """
    :param rows: results, those of a quantity side by side
    :param device: the device they were measured on
    """
    width = max(len(row.case) for row in rows) + 2
    meaning = ": median (its 95 % interval) [range of single rounds]" if rows[0].rounds > 1 else ""
    for (quantity, unit), group in groupby(rows, key=lambda row: (row.quantity, row.unit)):
        print(f"\n{quantity}, {unit}{meaning}")
        for row in group:
            x = "" if row.x is None else f"{row.x:9g}"
            ms = "" if row.ms is None else f"{row.ms:12.4g} ms here"
            interval, around = f"({row.median_low:.4g} - {row.median_high:.4g})", f"[{row.low:.4g} - {row.high:.4g}]"
            spread = f"  {interval:18} {around}" if row.rounds > 1 else ""
            print(f"  {row.case:{width}}{x}{row.median:12.4g}{spread}{ms}")
    print(f"\nrounds: {rows[0].rounds}, on {machine(device)}, {date.today()}")


def write_csv(part: str, rows: Sequence[Row], folder: Path, device: str = "cpu") -> Path:
    """
    :param part: name of the part of the benchmark
    :param rows: its results
    :param folder: folder to write to
    :param device: the device they were measured on
    :return: the file
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{part}.csv"
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*Row._fields[:-1], "date", "machine"])
        for row in rows:
            x = "" if row.x is None else f"{row.x:g}"
            numbers = [f"{value:.4g}" for value in (row.median, row.median_low, row.median_high, row.low, row.high)]
            writer.writerow([row.quantity, row.case, row.unit, *numbers, row.rounds, x, date.today(), machine(device)])
    return file


def plot(part: str, rows: Sequence[Row], folder: Path, device: str = "cpu") -> Path | None:
    """
    :param part: name of the part of the benchmark
    :param rows: its results
    :param folder: folder to write to
    :param device: the device they were measured on
    :return: the file; None without matplotlib
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    panels = [(key, list(group)) for key, group in groupby(rows, key=lambda row: (row.quantity, row.unit))]
    heights = [3.0 if group[0].x is not None else 0.6 + 0.22 * len(group) for _, group in panels]
    figure = Figure(figsize=(8, sum(heights) + 0.5 * len(panels) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axes, ((quantity, unit), group) in zip(all_axes, panels, strict=True):
        if group[0].x is None:
            _bars(axes, group)
            axes.set_title(f"{quantity}, {unit}", fontsize=9)
        else:
            _lines(axes, group)
            axes.set(xlabel=quantity, ylabel=unit)
        axes.tick_params(labelsize=8)
    figure.supxlabel(f"median of {rows[0].rounds} rounds and its 95 % interval, {machine(device)}, {date.today()}", fontsize=7)
    file = folder / f"{part}.png"
    figure.savefig(file, dpi=100)
    return file


def _bars(axes, rows: Sequence[Row]) -> None:
    medians = [row.median for row in rows]
    errors = [[row.median - row.median_low for row in rows], [row.median_high - row.median for row in rows]]
    axes.barh([row.case for row in rows], medians, xerr=errors, height=0.7, error_kw={"lw": 0.8})
    axes.invert_yaxis()


def _lines(axes, rows: Sequence[Row]) -> None:
    for case, group in groupby(rows, key=lambda row: row.case):
        points = list(group)
        x = [row.x for row in points]
        (line,) = axes.plot(x, [row.median for row in points], "o-", ms=3, lw=1, label=case)
        axes.fill_between(
            x, [row.median_low for row in points], [row.median_high for row in points], color=line.get_color(), alpha=0.2, lw=0
        )
    axes.set_xscale("log", base=2)
    axes.legend(fontsize=8)
