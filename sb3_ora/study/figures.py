"""Figures of a report, at the width of a column."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sb3_ora.study.collect import Curves, Run, risk_curve, step_grid, training_curve
from sb3_ora.study.statistics import band, performance_profile
from sb3_ora.study.styles import style_of

COVERAGE = 0.9
WIDTH = 3.4  # inches, a column of a two-column page
FONT: dict[str, Any] = {"fontsize": 7}


def new_figure(height: float = 2.4, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """
    :param height: inches
    :param rows: panels above one another
    :return: a figure and its panels
    """
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(np.atleast_1d(figure.subplots(rows, 1, sharex=True)))
    for axis in panels:
        axis.tick_params(which="both", labelsize=6)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, panels


def save(figure: Figure, folder: Path, name: str) -> None:
    """
    :param figure: the figure
    :param folder: where to write PNG and SVG
    :param name: name of the files
    """
    figure.savefig(folder / f"{name}.png", dpi=200)
    figure.set_layout_engine("none")  # it has done its work
    with rc_context({"svg.hashsalt": name}):  # with this and without a date, the same bytes each time
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def legend_below(figure: Figure, axis: Axes) -> None:
    """
    :param figure: the figure
    :param axis: panel whose lines are named
    """
    handles, names = axis.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False, handlelength=3.2, **FONT)


# Lines over training


def method_curves(runs: Collection[Run], curve: Callable[[Run, np.ndarray], np.ndarray]) -> dict[str, Curves]:
    """
    :param runs: runs of one environment
    :param curve: gives the curve of a run on a grid of steps
    :return: curves of each method, by label; without methods that have none
    """
    grid = step_grid(runs)
    found = {}
    for label in dict.fromkeys(run.label for run in runs):
        values = np.stack([curve(run, grid) for run in runs if run.label == label])  # (seeds, T)
        if not np.isnan(values).all():
            found[label] = Curves(grid, values)
    return found


def draw_curves(axis: Axes, curves: Mapping[str, Curves], names: Mapping[str, str]) -> pd.DataFrame:
    """
    Mean of the seeds and the band that holds 90 % of them.

    :param axis: where to draw
    :param curves: curves of each method, by label
    :param names: name of each method, by label
    :return: what was drawn
    """
    frames = []
    for number, (label, (steps, values)) in enumerate(curves.items()):
        style = style_of(label)
        mean, low, high = band(values, COVERAGE)
        every = (0.03 + 0.012 * (number % 8), 0.12)
        look = {"color": style.color, "linestyle": style.line, "marker": style.marker, "markevery": every}
        title = f"{names[label]} ({len(values)})"
        axis.plot(steps, mean, label=title, linewidth=1.1, markersize=3, **look)  # type: ignore[arg-type]
        axis.fill_between(steps, low, high, color=style.color, alpha=0.12, linewidth=0)
        seeds = (~np.isnan(values)).sum(axis=0)
        frames.append(pd.DataFrame({"method": label, "step": steps, "mean": mean, "low": low, "high": high, "seeds": seeds}))
    return pd.concat(frames) if frames else pd.DataFrame(columns=["method", "step", "mean", "low", "high", "seeds"])


def training_figure(runs: Collection[Run], names: Mapping[str, str], window: int, title: str) -> tuple[Figure, pd.DataFrame]:
    """
    :param runs: runs of one environment
    :param names: name of each method, by label
    :param window: episodes to average over
    :param title: of the figure
    :return: the figure and its numbers
    """
    curves = method_curves(runs, lambda run, grid: training_curve(run, grid, window))
    figure, (axis,) = new_figure(2.2 + 0.14 * ((len(curves) + 1) // 2))
    table = draw_curves(axis, curves, names)
    axis.set_title(title, **FONT)
    axis.set_xlabel("environment steps", **FONT)
    axis.set_ylabel(f"training return, mean of {window} episodes", **FONT)
    legend_below(figure, axis)
    return figure, table


def risk_figure(runs: Collection[Run], names: Mapping[str, str], title: str) -> tuple[Figure, pd.DataFrame]:
    """
    :param runs: runs of one environment
    :param names: name of each method, by label
    :param title: of the figure
    :return: alpha, LTV and, where runs know it, the share of decisions that alpha changes, over training, and the numbers
    """
    texts = {"alpha": "risk level alpha", "ltv": "LTV of the heads"}
    if any(run.risk is not None and "changed" in run.risk for run in runs):
        texts["changed"] = "actions changed"
    figure, panels = new_figure(1.6 * len(texts), rows=len(texts))
    tables = []
    for axis, (column, text) in zip(panels, texts.items(), strict=True):
        curves = method_curves(runs, lambda run, grid, column=column: risk_curve(run, grid, column))  # type: ignore[misc]
        tables.append(draw_curves(axis, curves, names).assign(quantity=column))
        axis.set_ylabel(text, **FONT)
    panels[0].set_ylim(0, 1.05)
    if (tables[1]["mean"] > 0).any():
        panels[1].set_yscale("log")
    panels[0].set_title(title, **FONT)
    panels[-1].set_xlabel("environment steps", **FONT)
    legend_below(figure, panels[0])
    return figure, pd.concat([table for table in tables if len(table)] or tables)


# Bars, effects, profiles and cost


def test_figure(
    summary: pd.DataFrame, seeds: pd.DataFrame, references: Mapping[str, float], title: str
) -> tuple[Figure, pd.DataFrame]:
    """
    :param summary: rows of one environment and one test of the summary
    :param seeds: one value for each run: columns method and value
    :param references: values to draw as lines, by name
    :param title: of the figure
    :return: bars with the IQM and its 95 % interval, the seeds as points, and the numbers
    """
    figure, (axis,) = new_figure(1.2 + 0.2 * (len(summary) + len(references)))
    for place, row in enumerate(summary.itertuples()):
        style = style_of(row.method)
        error = np.nan_to_num([[row.iqm - row.iqm_low], [row.iqm_high - row.iqm]])  # no interval of few seeds
        look: dict[str, Any] = {
            "color": style.color,
            "alpha": 0.55,
            "hatch": style.hatch,
            "edgecolor": "black",
            "linewidth": 0.5,
        }
        axis.barh(place, row.iqm, xerr=error, height=0.7, error_kw={"linewidth": 0.8, "capsize": 2}, **look)
        points = seeds.loc[seeds["method"] == row.method, "value"]
        axis.plot(points, np.full(len(points), place + 0.22), "o", color="black", markerfacecolor="white", markersize=2.5)
    lines: Sequence[str | tuple] = ("--", ":", "-.", "-")
    for number, (name, value) in enumerate(references.items()):
        axis.axvline(value, color="black", linewidth=0.8, linestyle=lines[number % 4], label=f"{name}: {value:.4g}")
    axis.set_yticks(range(len(summary)), [f"{row.name} ({row.seeds})" for row in summary.itertuples(index=False)], **FONT)
    axis.invert_yaxis()
    axis.set_title(title, **FONT)
    axis.set_xlabel("greedy return, IQM of seeds", **FONT)
    if references:
        legend_below(figure, axis)
    return figure, summary


def effect_figure(effects: pd.DataFrame, names: Mapping[str, str], title: str) -> tuple[Figure, pd.DataFrame]:
    """
    :param effects: rows of one environment and one quantity of the effects
    :param names: name of each method, by label
    :param title: of the figure
    :return: rank-biserial correlations over seeds, over episodes, and the paper's, and the numbers
    """
    figure, (axis,) = new_figure(1.3 + 0.18 * len(effects))
    places = np.arange(len(effects))
    for column, marker, text in (
        ("r", "o", "seeds"),
        ("r_episodes", "x", "episodes (not independent)"),
        ("r_paper", "D", "paper"),
    ):
        look = {"color": "black", "markerfacecolor": "black" if column == "r" else "none"}
        if effects[column].notna().any():
            axis.plot(effects[column], places, marker, markersize=4, label=text, **look)  # type: ignore[arg-type]
    axis.axvline(0, color="gray", linewidth=0.6)
    labels = [f"{names[row.method]}, p (Holm) = {row.p_holm:.2g}" for row in effects.itertuples()]
    axis.set_yticks(places, labels, **FONT)
    axis.invert_yaxis()
    axis.set_xlim(-1.05, 1.05)
    axis.set_title(title, **FONT)
    axis.set_xlabel("rank-biserial correlation", **FONT)
    legend_below(figure, axis)
    return figure, effects


def profile_figure(scores: Mapping[str, np.ndarray], names: Mapping[str, str], title: str) -> tuple[Figure, pd.DataFrame]:
    """
    :param scores: one number for each run, by label of the method
    :param names: name of each method, by label
    :param title: of the figure
    :return: performance profiles, and the numbers
    """
    figure, (axis,) = new_figure(2.2 + 0.14 * ((len(scores) + 1) // 2))
    everything = np.concatenate(list(scores.values()))
    thresholds = np.linspace(everything.min(), everything.max(), 101)
    frames = []
    for number, (label, values) in enumerate(scores.items()):
        style = style_of(label)
        profile = performance_profile(values, thresholds)
        look = {"color": style.color, "linestyle": style.line, "marker": style.marker}
        every = (0.03 + 0.012 * (number % 8), 0.12)
        axis.step(thresholds, profile, label=names[label], markersize=3, linewidth=1.1, markevery=every, **look)  # type: ignore[arg-type]
        frames.append(pd.DataFrame({"method": label, "threshold": thresholds, "fraction": profile}))
    axis.set_title(title, **FONT)
    axis.set_xlabel("mean return of greedy episodes", **FONT)
    axis.set_ylabel("fraction of seeds above", **FONT)
    legend_below(figure, axis)
    return figure, pd.concat(frames)


def cost_figure(cost: pd.DataFrame, seeds: pd.DataFrame, names: Mapping[str, str], title: str) -> tuple[Figure, pd.DataFrame]:
    """
    :param cost: rows of one environment of the cost table; methods without heads are lines
    :param seeds: one row for each run
    :param names: name of each method, by label
    :param title: of the figure
    :return: return, time and memory against the number of heads, and the numbers
    """
    returns = seeds.groupby("method", sort=False)["training"].agg(["mean", "min", "max"])
    table = cost.join(returns.rename(columns=lambda name: f"training_{name}"), on="method").sort_values("n_heads")
    figure, panels = new_figure(4.2, rows=3)
    columns = ("training_mean", "seconds_per_1000_steps", "peak_memory_mb")
    texts = ("training return", "s per 1000 steps", "peak memory, MB")
    with_heads, without = table.dropna(subset=["n_heads"]), table[table["n_heads"].isna()]
    for axis, column, text in zip(panels, columns, texts, strict=True):
        if len(with_heads):
            axis.plot(with_heads["n_heads"], with_heads[column], "o-", color="#D55E00", markersize=3, label="ORA, K heads")
        if column == "training_mean":
            low, high = with_heads["training_min"], with_heads["training_max"]
            axis.fill_between(with_heads["n_heads"], low, high, color="#D55E00", alpha=0.15, linewidth=0)
        for row in without.itertuples():
            style = style_of(row.method)
            value = getattr(row, column)
            axis.axhline(value, color=style.color, linestyle=style.line, linewidth=1.1, label=names[row.method])
        axis.set_ylabel(text, **FONT)
    if len(with_heads):
        panels[-1].set_xscale("log", base=2)
    panels[0].set_title(title, **FONT)
    panels[-1].set_xlabel("number of heads K", **FONT)
    legend_below(figure, panels[0])
    return figure, table
