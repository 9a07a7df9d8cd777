import itertools
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from scipy import stats

from sb3_ora.study import figures
from sb3_ora.study.__main__ import main
from sb3_ora.study.collect import read_runs, seed_table, step_grid, training_curve
from sb3_ora.study.definition import load_study
from sb3_ora.study.report import read_options, references, write_report
from sb3_ora.study.statistics import effect_interval
from sb3_ora.study.styles import STYLES, style_of
from sb3_ora.study.tables import cost_table, effect_table, markdown, outcome_table, summary_table
from tests.study.made_up import write_cell, write_study

TEXT = """
title: A study
environments:
  CartPole-v1: {}
  or_gym/Knapsack-v1: {tests: {near: {}, far: {}}}
seeds: 5
configs: {tuned: {}}
methods:
  ora-cvar: {name: ORA, algo: ora_iqn, hyperparams: {n_heads: 4}}
  composite: {name: Composite, algo: ora_iqn, hyperparams: {n_heads: 2}}
  art: {name: ART, algo: art_iqn}
report:
  window: 2
  effects: {CartPole-v1: {training: {art: 0.5}}}
"""
ONE_ENVIRONMENT = TEXT.replace("  or_gym/Knapsack-v1: {tests: {near: {}, far: {}}}\n", "")
LEVELS = {"ora-cvar": 30.0, "composite": 20.0, "art": 25.0}


@pytest.fixture
def study(tmp_path):
    return write_study(tmp_path, TEXT)


def fill(study, cells=None, **kwargs):
    """Complete cells, with levels that depend on method and seed."""
    for cell in study.cells() if cells is None else cells:
        write_cell(cell, level=LEVELS[cell.method.label] + 3 * cell.seed, **kwargs)


def items(page):
    """Names of what a report consists of, with the kinds of files of each."""
    found = {}
    for path in page.parent.iterdir():
        found.setdefault(path.name.rsplit(".", 1)[0], set()).add(path.suffix)
    return found


# Numbers


def test_training_curve(study):
    """By hand: episodes end at 100, 200 and 400 with 1, 3 and 8; means of two are 1, 2 and 5.5, the last until the end."""
    (cell,) = study.cells(["art"])[:1]
    write_cell(cell, episodes=[[100, 1], [200, 3], [400, 8]], n_timesteps=500)
    (run,), _ = read_runs(study)
    curve = training_curve(run, np.array([50, 100, 150, 200, 300, 400, 450, 500, 501]), window=2)
    assert curve == pytest.approx([np.nan, 1, 1.5, 2, 3.75, 5.5, 5.5, 5.5, np.nan], nan_ok=True, abs=1e-9)
    table = seed_table([run], window=2)
    pieces = (1 + 2) / 2 * 100 + (2 + 5.5) / 2 * 200 + 5.5 * 100  # from 100 to 500
    assert table["training"].item() == pytest.approx(pieces / 400, abs=1e-9)
    assert table["test: test"].item() == pytest.approx(run.final["return"].mean(), abs=1e-9)


def test_summary(study):
    fill(study)
    runs, _ = read_runs(study)
    seeds = seed_table(runs, 2)
    table = summary_table(seeds).set_index(["environment", "quantity", "method"])
    assert len(table) == 3 * (2 + 3)  # training and one test; training and two tests
    values = np.array([run.final["return"].mean() for run in runs if (run.env, run.label) == ("CartPole-v1", "art")])
    row = table.loc[("CartPole-v1", "test: test", "art")]
    assert row["iqm"] == pytest.approx(stats.trim_mean(values, 0.25), abs=1e-9)
    assert (row["mean"], row["worst"]) == pytest.approx((values.mean(), values.min()), abs=1e-9)
    assert row["seeds"] == 5 and row["claim"]
    assert_bootstrap(row["iqm_low"], row["iqm_high"], values, lambda drawn: stats.trim_mean(drawn, 0.25))


def assert_bootstrap(low, high, values, statistic):
    """A 95 % interval, against all ways to draw the seeds with replacement: 3125 with five."""
    drawn = [statistic(draw) for draw in itertools.product(values, repeat=len(values))]
    for end, share in ((low, 0.025), (high, 0.975)):
        least, most = np.quantile(drawn, [share - 0.012, share + 0.012])
        assert least <= end <= most


def test_effects(study):
    fill(study)
    runs, _ = read_runs(study)
    seeds = seed_table(runs, 2)
    table = effect_table(
        runs, seeds, "ora-cvar", {"CartPole-v1": {"training": {"art": 0.5}, "test: test": {"composite": 0.2}}}
    )
    assert len(table) == 2 * (2 + 3)
    training = table[table["quantity"] == "training"].reset_index(drop=True)
    for row in training.itertuples():
        mine, theirs = (
            seeds.loc[(seeds["environment"] == row.environment) & (seeds["method"] == label), "training"]
            for label in ("ora-cvar", row.method)
        )
        expected = stats.mannwhitneyu(mine, theirs, method="exact")
        assert (row.u, row.p) == (expected.statistic, pytest.approx(expected.pvalue, abs=1e-9))
        assert row.r == pytest.approx(2 * expected.statistic / 25 - 1, abs=1e-9)
        assert (row.r_low, row.r_high) == effect_interval(mine, theirs)
        pooled = [
            np.concatenate([run.episodes["return"] for run in runs if (run.env, run.label) == (row.environment, label)])
            for label in ("ora-cvar", row.method)
        ]
        u = stats.mannwhitneyu(*pooled).statistic
        assert row.r_episodes == pytest.approx(2 * u / len(pooled[0]) / len(pooled[1]) - 1, abs=1e-9)
    order = np.argsort(training["p"].to_numpy())
    by_hand = np.maximum.accumulate(training["p"].to_numpy()[order] * [4, 3, 2, 1]).clip(max=1)
    assert training["p_holm"].to_numpy()[order] == pytest.approx(by_hand, abs=1e-9)
    assert training["r_paper"].tolist() == pytest.approx([np.nan, 0.5, np.nan, np.nan], nan_ok=True)
    tests = table[table["quantity"] != "training"]
    assert tests["r_paper"].dropna().tolist() == [0.2] and tests.query("r_paper == 0.2")["method"].tolist() == ["composite"]


def test_outcomes(study):
    cells = [cell for cell in study.cells(["art"]) if cell.environment.env_id == "CartPole-v1"]
    for cell, outcomes in zip(cells, (("hit",), ("hit", "miss"), ("lost",), ("lost",), ("lost",)), strict=True):
        write_cell(cell, outcomes=outcomes)
    runs, _ = read_runs(study)
    columns = {"won": "hit", "missed": "miss"}
    seeds = seed_table(runs, 2, columns)
    assert seeds["won: test"].tolist() == [100, 50, 0, 0, 0] and seeds["missed: test"].tolist() == [0, 50, 0, 0, 0]
    assert set(summary_table(seeds)["quantity"]) == {"training", "test: test"}
    (row,) = outcome_table(runs, columns, {"art": {"test": [88, 5]}}).to_dict("records")
    assert (row["won"], row["missed"], row["won_paper"], row["missed_paper"], row["seeds"]) == (30, 10, 88, 5, 5)
    assert_bootstrap(row["won_low"], row["won_high"], (100, 50, 0, 0, 0), np.mean)


def test_each_test_has_its_own_episodes(study):
    """Two tests with other returns and outcomes; five seeds of one method, two of the other, which makes no claim."""
    knapsack = [cell for cell in study.cells(["or_gym/Knapsack-v1", "ora-cvar", "art"]) if cell.method.label != "composite"]
    cells = [cell for cell in knapsack if cell.method.label == "ora-cvar" or cell.seed <= 2]
    fill(study, cells, outcomes=("hit", "miss"))
    for cell in cells:
        final = pd.read_csv(cell.folder / "final.csv")
        final.loc[final["test"] == "far", ["return", "outcome"]] = [7.0 + 50 * (cell.method.label == "art"), "lost"]
        final.to_csv(cell.folder / "final.csv", index=False)
    runs, _ = read_runs(study)
    table = effect_table(runs, seed_table(runs, 2), "ora-cvar", {}).set_index("quantity")
    assert not table["claim"].any() and (table["seeds"] == "5 / 2").all() and table[["r_low", "r_high"]].isna().all(axis=None)
    near = [
        np.concatenate([run.final.query("test == 'near'")["return"] for run in runs if run.label == label])
        for label in ("ora-cvar", "art")
    ]
    assert [len(part) for part in near] == [20, 8]
    expected = stats.mannwhitneyu(*near, method="exact")
    row = table.loc["test: near"]
    assert row["r_episodes"] == pytest.approx(2 * expected.statistic / 160 - 1, abs=1e-9)
    assert row["p_episodes"] == pytest.approx(expected.pvalue, rel=0.1) and row["p_episodes"] != row["p"]
    assert table.loc["test: far", "r_episodes"] == -1
    outcomes = outcome_table(runs, {"won": "hit", "lost": "lost"}, {}).set_index(["test", "method"])
    assert outcomes.loc[("near", "art"), ["won", "lost"]].tolist() == [50, 0]
    assert outcomes.loc[("far", "art"), ["won", "lost"]].tolist() == [0, 100]


def test_cost(study):
    cells = [cell for cell in study.cells(["ora-cvar"]) if cell.environment.env_id == "CartPole-v1"]
    for cell, seconds, memory in zip(cells, (1, 2, 3, 4, 100), (5, 6, 7, 8, None), strict=True):
        write_cell(cell, train_seconds=seconds, peak_memory_mb=memory, n_timesteps=500)
    (row,) = cost_table(read_runs(study)[0]).to_dict("records")
    assert (row["n_heads"], row["train_seconds"], row["seconds_per_1000_steps"], row["peak_memory_mb"]) == (4, 3, 6, 6.5)


def test_markdown():
    table = pd.DataFrame({"a": ["x", "y"], "b": [0.123456, np.nan], "c": [True, False], "d": [123456.7, 3]})
    assert (
        markdown(table) == "| a | b | c | d |\n| --- | --- | --- | --- |\n| x | 0.1235 | yes | 123457 |\n| y |  | no | 3 |\n"
    )


# The whole report


def test_everything_is_drawn(study):
    fill(study, references={"DP optimum": 60.0})
    page = write_report(study, study.root / "report")
    found = items(page)
    tables, pictures = {".csv", ".md"}, {".csv", ".md", ".png", ".svg"}
    expected = {name: tables for name in ("seeds", "summary", "effects", "cost")} | {"report": {".md"}}
    for env, tests in (("CartPole-v1", ["test"]), ("or_gym-Knapsack-v1", ["near", "far"])):
        names = [f"training_all_{env}", f"risk_{env}", f"effects_training_{env}"]
        names += [f"{kind}_{test}_{env}" for kind in ("test", "profile") for test in tests]
        names += [f"effects_test-{test}_{env}" for test in tests]
        expected |= {f"curves_{env}": tables} | dict.fromkeys(names, pictures)
    assert found == expected
    text = page.read_text()
    for target in re.findall(r"\]\((.*?)\)", text):
        assert (page.parent / target).stat().st_size > 0
    assert "not a claim" not in text and text.startswith("# A study: configuration 'tuned'")
    curve = pd.read_csv(page.parent / "training_all_CartPole-v1.csv")
    assert curve.groupby("method")["step"].count().tolist() == [200] * 3
    assert (curve["low"].dropna() <= curve["mean"].dropna()).all() and curve["seeds"].max() == 5
    assert pd.read_csv(page.parent / "test_test_CartPole-v1.csv")["line: DP optimum"].tolist() == [60] * 3
    runs = pd.read_csv(page.parent / "curves_CartPole-v1.csv")
    assert list(runs) == ["step", *(f"{label} {seed}" for seed in range(1, 6) for label in LEVELS)]
    for label, rows in curve.groupby("method"):
        np.testing.assert_allclose(rows["mean"], runs.filter(like=label).mean(axis=1), rtol=1e-5, atol=1e-5)
    check_profile(study, pd.read_csv(page.parent / "profile_test_CartPole-v1.csv"))
    check_risk(study, pd.read_csv(page.parent / "risk_CartPole-v1.csv"))


def check_profile(study, profile):
    """Fractions of seeds whose mean greedy return is above each threshold, counted one by one."""
    for label, rows in profile.groupby("method"):
        cells = [cell for cell in study.cells([label]) if cell.environment.env_id == "CartPole-v1"]
        values = [pd.read_csv(cell.folder / "final.csv")["return"].mean() for cell in cells]
        counted = [sum(value > threshold + 1e-3 for value in values) / 5 for threshold in rows["threshold"]]
        at_least = [sum(value > threshold - 1e-3 for value in values) / 5 for threshold in rows["threshold"]]
        fraction = rows["fraction"].to_numpy()
        assert (counted <= fraction).all() and (fraction <= at_least).all() and fraction[0] > fraction[-1] == 0


def check_risk(study, table):
    """The same in all seeds: made_up.write_cell has alpha fall from 1 to 1/2 and LTV from 1 to 1/e, changes rise to 1/10."""
    assert set(table["method"]) == {"ora-cvar", "composite"} and set(table["quantity"]) == {"alpha", "ltv", "changed"}
    known = table.dropna()
    part = known["step"] / 1000
    curves = {"alpha": 1 - part / 2, "ltv": np.exp(-part), "changed": part / 10}
    expected = np.select([known["quantity"] == name for name in curves], list(curves.values()))
    for column in ("mean", "low", "high"):
        assert known[column].to_numpy() == pytest.approx(expected, abs=2e-3)
    assert len(known) > 350 and (known["seeds"] == 5).all()


def test_labels_and_lines_of_figures(study):
    """Each method's p after Holm's correction beside its name; reference values are means over runs."""
    r = {"r": 1.0, "r_episodes": 0.5, "r_paper": np.nan}
    effects = pd.DataFrame({"method": ["art", "composite"], "p": [0.01, 0.02], "p_holm": [0.025, 0.034], **r})
    figure, _ = figures.effect_figure(effects, {"art": "ART", "composite": "Composite"}, "title")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "ART, p (Holm) = 0.025",
        "Composite, p (Holm) = 0.034",
    ]
    cells = [cell for cell in study.cells(["art"]) if cell.environment.env_id == "CartPole-v1"]
    for cell, optimum in zip(cells, (10.0, 20.0, 30.0, 40.0, 100.0), strict=True):
        write_cell(cell, references={"optimum": optimum, "greedy": 1.0})
    runs, _ = read_runs(study)
    assert references(runs, "test") == {"optimum": 40, "greedy": 1}
    summary = summary_table(seed_table(runs, 2)).query("quantity == 'test: test'")
    values = pd.DataFrame({"method": ["art"], "value": [1.0]})
    figure, _ = figures.test_figure(summary, values, references(runs, "test"), "title")
    lines = {line.get_label(): line.get_xdata()[0] for line in figure.axes[0].lines}
    assert (lines["optimum: 40"], lines["greedy: 1"]) == (40, 1)


def test_gaps_give_notes(study):
    """One seed, runs of unequal length, a missing method, a run without episodes, one with other settings."""
    ora, other, empty, changed, *_ = [
        cell for cell in study.cells() if cell.environment.env_id == "CartPole-v1" and cell.method.label != "art"
    ]
    fill(study, [ora])
    fill(study, [other], n_timesteps=600)
    write_cell(empty, episodes=np.empty((0, 2)), risk=False, versions={"sb3_ora": "1"})
    write_cell(changed, settings={})
    page = write_report(study, study.root / "report")
    text = page.read_text()
    assert "- CartPole-v1: runs have unequal lengths, 600, 1,000 steps." in text
    assert "- CartPole-v1, ORA: 2 seeds, not a claim." in text and "- CartPole-v1, Composite: 1 seed, not a claim." in text
    assert "- CartPole-v1, ORA: the seeds have 2 different versions." in text
    assert "- CartPole-v1, ART: 5 of the 5 runs are left out, missing." in text
    assert "- CartPole-v1, Composite: 1 of the 5 runs is left out, changed." in text
    assert "training_all_CartPole-v1.png" in text and "Knapsack-v1.png" not in text


def test_nothing_and_no_reference(tmp_path):
    study = write_study(tmp_path, ONE_ENVIRONMENT)
    page = write_report(study, study.root / "report")
    assert "There is nothing to show yet." in page.read_text()
    fill(study, study.cells(["art"]))
    page = write_report(study, study.root / "report")
    assert "No effect sizes: they need runs of ora-cvar and of another method." in page.read_text()
    assert not items(page).keys() & {"effects", "risk_CartPole-v1"}


def test_groups_cost_and_outcomes(tmp_path):
    options = "\n  figures: {one: [art], two: [art, ora-cvar]}\n  cost: true\n  outcomes: {won: hit}"
    study = write_study(tmp_path, ONE_ENVIRONMENT.replace("window: 2", "window: 2" + options))
    fill(study, outcomes=("hit", "miss"))
    found = items(write_report(study, study.root / "report"))
    assert {"training_one_CartPole-v1", "training_two_CartPole-v1", "cost_CartPole-v1", "outcomes"} <= found.keys()
    assert "training_all_CartPole-v1" not in found
    costs = pd.read_csv(study.root / "report" / "cost_CartPole-v1.csv")
    assert costs["method"].tolist() == ["composite", "ora-cvar", "art"]  # by their heads, then those without
    curves = pd.read_csv(study.root / "report" / "training_one_CartPole-v1.csv")
    assert set(curves["method"]) == {"art"}


def test_faults_in_options(tmp_path):
    """Found when the file is read, before anything runs."""
    for text, message in (
        ("window: 0", "report.window must be an integer of at least 1, got 0"),
        ("windows: 2", "each key of report must be one of .*, got 'windows'"),
        ("cost: 2", "report.cost must be True or False, got 2"),
        ("figures: {one: [dqn]}", "each label of report.figures.one must be one of .*, got 'dqn'"),
        ("figures: {one: art}", "report.figures.one must be a list of labels, got 'art'"),
        ("figures: [art]", r"report.figures must be a mapping, got \['art'\]"),
        ("reference: dqn", "report.reference must be one of .*, got 'dqn'"),
        (
            "outcomes: {won: hit}\n  paper_outcomes: {art: {near: [1, 2]}}",
            r"report.paper_outcomes.art.near must have a number for each of \['won'\], got \[1, 2\]",
        ),
        (
            "outcomes: {won: hit}\n  paper_outcomes: {arts: {near: [1]}}",
            "each key of report.paper_outcomes must .*, got 'arts'",
        ),
        (
            "outcomes: {won: hit}\n  paper_outcomes: {art: {nea: [1]}}",
            "each key of report.paper_outcomes.art must .*, got 'nea'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            write_study(tmp_path, TEXT.replace("window: 2", text))
    for text, message in (
        ("{CartPole-v0: {training: {art: 0.5}}}", "each key of report.effects must .*, got 'CartPole-v0'"),
        ("{CartPole-v1: {testing: {art: 0.5}}}", "each key of report.effects.CartPole-v1 must .*, got 'testing'"),
        ("{CartPole-v1: {training: {arts: 0.5}}}", "each key of report.effects.CartPole-v1.training must .*, got 'arts'"),
    ):
        with pytest.raises(ValueError, match=message):
            write_study(tmp_path, TEXT.replace("{CartPole-v1: {training: {art: 0.5}}}", text))
    assert read_options(write_study(tmp_path, TEXT.replace("window: 2", "window: 2\n  figures:")))["figures"] == {}


def test_nothing_to_show_is_said(study, capsys):
    given = ["report", str(study.path), "--output", str(study.root.parent), "--only", "art"]
    assert main(given) == 0
    page = study.root / "report-art" / "report.md"
    assert capsys.readouterr() == (f"{page}\n", "There is nothing to show yet.\n")
    fill(study, study.cells(["art"])[:1])
    assert main(given) == 0
    assert capsys.readouterr() == (f"{page}\n", "")


# Looks


def test_styles_differ_without_colour():
    lines = [(style.line, style.marker) for style in STYLES.values()]
    assert len(set(lines)) == len(lines)
    assert len({style.hatch for style in STYLES.values()}) == len(STYLES)


def test_a_style_belongs_to_a_label():
    assert style_of("art") is STYLES["art"]
    unknown = [style_of(f"method {number}") for number in range(8)]
    assert unknown == [style_of(f"method {number}") for number in range(8)] and len(set(unknown)) == 8


def test_lines_are_drawn_in_their_style(study):
    """The same method looks the same in figures with other methods around it."""
    fill(study)
    runs, _ = read_runs(study)
    names = {run.label: run.cell.method.name for run in runs}
    here = [run for run in runs if run.env == "CartPole-v1"]
    for labels in itertools.permutations(LEVELS):
        shown = [run for label in labels for run in here if run.label == label]
        figure, _ = figures.training_figure(shown, names, 2, "title")
        for line, label in zip(figure.axes[0].lines, labels, strict=True):
            style = STYLES[label]
            assert to_rgb(line.get_color()) == to_rgb(style.color) and line.get_marker() == style.marker
            assert line.get_label() == f"{names[label]} (5)"
        assert figure.get_size_inches()[0] == figures.WIDTH


def test_a_figure_is_the_same_file_each_time(study, tmp_path):
    fill(study, study.cells(["art"]))
    runs = [run for run in read_runs(study)[0] if run.env == "CartPole-v1"]
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        figures.save(figures.training_figure(runs, {"art": "ART"}, 2, "title")[0], tmp_path / name, "a")
    for kind in ("png", "svg"):
        assert (tmp_path / "first" / f"a.{kind}").read_bytes() == (tmp_path / "second" / f"a.{kind}").read_bytes()


def test_band_of_the_figure(study):
    """Against numpy's quantiles of curves interpolated one by one."""
    fill(study)
    runs = [run for run in read_runs(study)[0] if (run.env, run.label) == ("CartPole-v1", "art")]
    _, table = figures.training_figure(runs, {"art": "ART"}, 1, "title")
    steps = table["step"].to_numpy()
    values = np.stack([np.interp(steps, run.episodes["step"], run.episodes["return"]) for run in runs])
    known = steps >= 20  # the first episode's end
    assert table["low"].to_numpy()[known] == pytest.approx(np.quantile(values, 0.05, axis=0)[known], abs=1e-9)
    assert table["high"].to_numpy()[known] == pytest.approx(np.quantile(values, 0.95, axis=0)[known], abs=1e-9)
    assert table["mean"].isna().to_numpy().tolist() == (~known).tolist()


def test_the_report_of_other_seeds(study):
    fill(study)
    runs, notes = read_runs(load_study(study.path, output=study.root.parent, seeds=2), ["art"])
    assert len(runs) == 4 and {run.cell.seed for run in runs} == {1, 2}
    assert notes == [f"{env}, ART: 2 seeds, not a claim." for env in ("CartPole-v1", "or_gym/Knapsack-v1")]


def test_a_partial_report_leaves_the_whole_one(study, capsys):
    fill(study)
    given = ["report", str(study.path), "--output", str(study.root.parent)]
    assert main(given) == 0
    whole = {path.name: path.read_bytes() for path in (study.root / "report").iterdir()}
    assert main([*given, "--only", "art", "or_gym/Knapsack-v1"]) == 0
    page = study.root / "report-art-or_gym-Knapsack-v1" / "report.md"
    assert capsys.readouterr().out.split() == [str(study.root / "report" / "report.md"), str(page)]
    assert set(pd.read_csv(page.parent / "seeds.csv")["method"]) == {"art"}
    assert {path.name: path.read_bytes() for path in (study.root / "report").iterdir()} == whole


def test_tests_whose_names_differ_only_in_signs(tmp_path):
    study = write_study(tmp_path, ONE_TEST.replace("{2: {}}", "{'a/b': {}, 'a b': {}}"))
    for cell in study.cells(["art"]):
        write_cell(cell)
        final = pd.read_csv(cell.folder / "final.csv")
        final["return"] = final["test"].map({"a/b": 1.0, "a b": 2.0})
        final.to_csv(cell.folder / "final.csv", index=False)
    folder = write_report(study, study.root / "report").parent
    tables = [pd.read_csv(folder / f"test_a-b_CartPole-v1{end}.csv") for end in ("", "-2")]
    assert [table["iqm"].item() for table in tables] == [1.0, 2.0]
    assert (folder / "test_a-b_CartPole-v1-2.png").stat().st_size > 0


# Each number in its place


ONE_TEST = """
environments:
  CartPole-v1: {tests: {2: {}}}
seeds: 5
configs: {tuned: {}}
methods:
  art: {name: ART, algo: art_iqn}
  ora-cvar: {name: ORA, algo: ora_iqn, hyperparams: {n_heads: 4}}
report: {window: 1, cost: true}
"""


def test_an_episode_that_ends_after_the_last_step(tmp_path):
    """Several environments overshoot: 520 of 500 steps."""
    cell = write_study(tmp_path, ONE_TEST).cells()[0]
    write_cell(cell, episodes=[[100, 1], [520, 3]], n_timesteps=500)
    (run,), _ = read_runs(write_study(tmp_path, ONE_TEST))
    curve = training_curve(run, np.array([310, 500, 520]), 1)
    assert curve == pytest.approx([2, 1 + 2 * 400 / 420, 3])


def test_outcomes_that_pandas_takes_for_missing(tmp_path):
    study = write_study(tmp_path, ONE_TEST)
    write_cell(study.cells()[0], outcomes=("None", "hit", "", "hit"))
    runs, _ = read_runs(study)
    (row,) = outcome_table(runs, {"none": "None", "no": "", "hit": "hit"}, {}).to_dict("records")
    assert (row["test"], row["none"], row["no"], row["hit"]) == ("2", 25, 25, 50)


def test_notes_on_hyperparameters_and_machines(tmp_path):
    study = write_study(tmp_path, ONE_TEST)
    first, _, second, _, third, *_ = study.cells()
    write_cell(first)
    write_cell(second, machine={"cpu": "another", "device": "cpu"})
    write_cell(third, hyperparams={"gamma": "0.5"})
    _, notes = read_runs(study)
    for what in ("hyperparams", "machine"):
        assert f"CartPole-v1, ART: the seeds have 2 different {what}." in notes


def test_unequal_lengths_and_four_seeds(tmp_path):
    study = write_study(tmp_path, ONE_TEST)
    for cell in study.cells(["art"])[:4]:
        write_cell(cell, n_timesteps=1000 if cell.seed == 1 else 400)
    runs, notes = read_runs(study)
    assert step_grid(runs)[-1] == 1000
    assert "CartPole-v1, ART: 4 seeds, not a claim." in notes
    summary = summary_table(seed_table(runs, 1))
    assert not summary["claim"].any() and summary[["iqm_low", "iqm_high"]].isna().all(axis=None)


def test_bars_and_effects():
    summary = pd.DataFrame(
        {"method": ["art"], "name": ["ART"], "seeds": [5], "iqm": [4.0], "iqm_low": [1.0], "iqm_high": [5.0]}
    )
    figure, _ = figures.test_figure(summary, pd.DataFrame({"method": ["art"], "value": [2.0]}), {}, "title")
    (bar,) = [part for part in figure.axes[0].containers if hasattr(part, "errorbar") and part.errorbar is not None]
    (segment,) = bar.errorbar.lines[2][0].get_segments()
    assert segment[:, 0].tolist() == [1, 5]
    effects = pd.DataFrame({"method": ["art"], "p_holm": [0.1], "r": [0.9], "r_episodes": [0.2], "r_paper": [0.5]})
    figure, _ = figures.effect_figure(effects, {"art": "ART"}, "title")
    drawn = {line.get_label(): line.get_xdata()[0] for line in figure.axes[0].lines}
    assert (drawn["seeds"], drawn["episodes (not independent)"], drawn["paper"]) == (0.9, 0.2, 0.5)


def test_cost_against_heads(tmp_path):
    study = write_study(tmp_path, ONE_TEST)
    for cell in study.cells(["ora-cvar"])[:3]:
        write_cell(cell, episodes=[[1, 10.0 * cell.seed], [1000, 10.0 * cell.seed]])
    runs, _ = read_runs(study)
    figure, table = figures.cost_figure(cost_table(runs), seed_table(runs, 1), {"ora-cvar": "ORA"}, "title")
    assert table[["training_mean", "training_min", "training_max"]].to_numpy().tolist() == [[20, 10, 30]]
    assert figure.axes[0].lines[0].get_ydata().tolist() == [20]


def test_bars_are_of_the_test(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "save", lambda *_: None)
    study = write_study(tmp_path, ONE_TEST)
    for cell in study.cells(["art"]):
        write_cell(cell, level=10.0 * cell.seed)
    write_report(study, study.root / "report")
    finals = [pd.read_csv(cell.folder / "final.csv")["return"].mean() for cell in study.cells(["art"])]
    table = pd.read_csv(study.root / "report" / "test_2_CartPole-v1.csv")
    assert table["iqm"].item() == pytest.approx(stats.trim_mean(finals, 0.25), rel=1e-4)


def test_cost_without_heads(tmp_path):
    study = write_study(tmp_path, ONE_TEST)
    fill(study, study.cells(["art"]))
    assert "cost_CartPole-v1" in items(write_report(study, study.root / "report"))
