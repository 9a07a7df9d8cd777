"""Draws every figure and table of a study from the cells that are complete."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from sb3_ora.study import figures, tables
from sb3_ora.study.collect import Run, curve_table, read_runs, seed_table
from sb3_ora.study.definition import Study
from sb3_ora.study.options import read_options

#: What a report says that shows nothing
NOTHING = "There is nothing to show yet."


class Writer:
    """
    Writes the items of a report, each as PNG, SVG, CSV and Markdown, and one page that shows them all.

    :param folder: where to
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.parts: list[str] = []
        self.names: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, caption: str, table: pd.DataFrame, figure: Figure | None = None, show: bool = True) -> None:
        """
        :param name: name of the files
        :param caption: what it shows
        :param table: the numbers
        :param figure: the picture, if there is one
        :param show: whether the page has the numbers too
        """
        name = self._file_name(name)
        table.to_csv(self.folder / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")
        text = tables.markdown(table)
        (self.folder / f"{name}.md").write_text(f"{caption}\n\n{text}")
        if figure is not None:
            figures.save(figure, self.folder, name)
            self.parts.append(f"![{name}]({name}.png)")
        self.parts.append(f"{caption} ([numbers]({name}.csv))")
        if show:
            self.parts.append(text)

    def _file_name(self, name: str) -> str:
        """The name without signs that a file cannot have, and with a number where others have become equal to it."""
        plain = re.sub(r"[^\w.-]+", "-", name)
        candidates = (plain if n == 1 else f"{plain}-{n}" for n in itertools.count(1))
        chosen = next(candidate for candidate in candidates if candidate not in self.names)
        self.names.add(chosen)
        return chosen

    def finish(self, title: str, notes: Collection[str]) -> Path:
        """
        :param title: heading of the page
        :param notes: what a reader has to know
        :return: path of the page
        """
        page = self.folder / "report.md"
        head = [f"# {title}", *(["\n".join(f"- {note}" for note in notes)] if notes else [])]
        page.write_text("\n\n".join([*head, *self.parts]).rstrip() + "\n")
        return page


def write_report(study: Study, folder: Path, only: Collection[str] = ()) -> Path:
    """
    :param study: the study
    :param folder: where to write
    :param only: labels, algorithms and environments to keep, see :meth:`Study.cells`
    :return: path of the page that shows everything
    """
    options = read_options(study)
    runs, notes = read_runs(study, only)
    writer = Writer(folder)
    if not runs:
        return writer.finish(study.title, [*notes, NOTHING])
    seeds = seed_table(runs, options["window"], options["outcomes"])
    summary = tables.summary_table(seeds)
    names = {run.label: run.cell.method.name for run in runs}
    writer.add("seeds", "Every run", seeds, show=False)
    writer.add(
        "summary",
        f"Return by method, over seeds. 'training' is the height of the training curve (mean of {options['window']} "
        "episodes) averaged over the run, tests are greedy (Atari: as rl-zoo3 evaluates); IQM with 95 % bootstrap interval "
        "(which covers about 90 % with 5 seeds). A claim needs 5 seeds, and so does an interval.",
        summary,
    )
    effects = tables.effect_table(runs, seeds, options["reference"], options["effects"])
    if effects.empty:
        notes.append(f"No effect sizes: they need runs of {options['reference']} and of another method.")
    for env in dict.fromkeys(run.env for run in runs):
        add_environment(writer, [run for run in runs if run.env == env], seeds, summary, effects, names, options)
    if len(effects):
        writer.add(
            "effects",
            f"{names[options['reference']]} against the others. r: rank-biserial correlation over seeds, positive where it is "
            "better; p: exact Mann-Whitney; p_holm: corrected over environments and methods of the same quantity. "
            "r_episodes and p_episodes take every episode as independent, which it is not; the paper does not name its unit.",
            effects,
        )
    if options["outcomes"]:
        outcomes = tables.outcome_table(runs, options["outcomes"], options["paper_outcomes"])
        caption = (
            "Outcomes of greedy episodes in percent: mean of seeds, 95 % bootstrap interval from 5 seeds on, and the paper's."
        )
        writer.add("outcomes", caption, outcomes)
    writer.add("cost", "Time and memory: medians over seeds", tables.cost_table(runs))
    return writer.finish(f"{study.title}: configuration '{study.config}'", notes)


def add_environment(
    writer: Writer,
    runs: list[Run],
    seeds: pd.DataFrame,
    summary: pd.DataFrame,
    effects: pd.DataFrame,
    names: Mapping[str, str],
    options: Mapping[str, Any],
) -> None:
    """
    The figures of one environment.

    :param writer: of the report
    :param runs: runs of this environment
    :param seeds: one row for each run of the study
    :param summary: summary of the study
    :param effects: effects of the study, maybe none
    :param names: name of each method, by label
    :param options: of the report
    """
    env = runs[0].env
    seeds, summary = seeds[seeds["environment"] == env], summary[summary["environment"] == env]
    writer.add(f"curves_{env}", f"{env}: training return of every run", curve_table(runs, options["window"]), show=False)
    groups = options["figures"] or {"all": list(names)}
    for group, labels in groups.items():
        shown = [run for label in labels for run in runs if run.label == label]
        if shown:
            figure, table = figures.training_figure(shown, names, options["window"], env)
            caption = f"{env}: training return, mean of the last {options['window']} episodes; mean of seeds, 90 % band."
            writer.add(f"training_{group}_{env}", caption, table, figure, show=False)
    for test in runs[0].cell.environment.tests:
        add_test(writer, env, test, seeds, summary[summary["quantity"] == f"test: {test}"], references(runs, test), names)
    for quantity in dict.fromkeys(effects["quantity"]) if len(effects) else ():
        here = effects[(effects["environment"] == env) & (effects["quantity"] == quantity)]
        if len(here):
            figure, table = figures.effect_figure(here, names, f"{env}, {quantity}: {names[options['reference']]} against")
            writer.add(f"effects_{quantity}_{env}", f"{env}: effect sizes, {quantity}", table, figure, show=False)
    with_risk = [run for run in runs if run.risk is not None]
    if with_risk:
        figure, table = figures.risk_figure(with_risk, names, env)
        caption = (
            f"{env}: over training alpha, LTV in squared units of return, and where it is known the share of decisions in "
            "which alpha changes the greedy action; mean of seeds, 90 % band."
        )
        writer.add(f"risk_{env}", caption, table, figure, show=False)
    if options["cost"]:
        figure, table = figures.cost_figure(tables.cost_table(runs), seeds, names, env)
        writer.add(f"cost_{env}", f"{env}: return, time and memory against the number of heads", table, figure)


def add_test(
    writer: Writer,
    env: str,
    test: str,
    seeds: pd.DataFrame,
    summary: pd.DataFrame,
    lines: Mapping[str, float],
    names: Mapping[str, str],
) -> None:
    """
    Bars and performance profile of one test.

    :param writer: of the report
    :param env: the environment
    :param test: name of the test
    :param seeds: one row for each run of this environment
    :param summary: summary of this test
    :param lines: values that the environment knows, by name
    :param names: name of each method, by label
    """
    values = seeds[["method", f"test: {test}"]].set_axis(["method", "value"], axis=1).dropna()
    title = env if test == "test" else f"{env}, {test}"
    figure, table = figures.test_figure(summary, values, lines, title)
    table = table.assign(**{f"line: {name}": value for name, value in lines.items()})
    writer.add(f"test_{test}_{env}", f"{title}: greedy return, IQM of seeds with 95 % interval.", table, figure, show=False)
    scores = {label: group["value"].to_numpy() for label, group in values.groupby("method", sort=False)}
    figure, table = figures.profile_figure(scores, names, title)
    writer.add(f"profile_{test}_{env}", f"{title}: performance profile of greedy returns.", table, figure, show=False)


def references(runs: Collection[Run], test: str) -> dict[str, float]:
    """
    :param runs: runs of one environment
    :param test: name of the test
    :return: values that the environment knows, mean over runs, by name
    """
    known = [run.record["references"][test] for run in runs]
    return {name: float(np.mean([values[name] for values in known])) for name in known[0]}
