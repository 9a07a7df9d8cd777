"""Tables of a report, from the runs of a study."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from sb3_ora.study.collect import CLAIM, Run, outcome_percent
from sb3_ora.study.statistics import (
    bootstrap_interval,
    effect_interval,
    holm,
    interquartile_mean,
    mann_whitney,
    rank_biserial,
    row_interquartile_means,
    row_means,
)


def quantities(seeds: pd.DataFrame) -> list[str]:
    """
    :param seeds: what :func:`sb3_ora.study.collect.seed_table` returns
    :return: the columns that methods are compared in, which are returns
    """
    return [column for column in seeds.columns if column == "training" or column.startswith("test: ")]


def summary_table(seeds: pd.DataFrame) -> pd.DataFrame:
    """
    :param seeds: one row for each run
    :return: for each environment, quantity and method the mean, the IQM with its 95 % bootstrap interval, and the worst seed.
        With fewer than five seeds there is no interval: of three it would be their range
    """
    rows = []
    for env, here in seeds.groupby("environment", sort=False):
        for quantity in quantities(here.dropna(axis="columns", how="all")):
            for label, runs in here.groupby("method", sort=False):
                values = runs[quantity].dropna().to_numpy()
                if len(values) == 0:
                    continue
                low, high = interval(values)
                rows.append(
                    {
                        "environment": env,
                        "quantity": quantity,
                        "method": label,
                        "name": runs["name"].iloc[0],
                        "seeds": len(values),
                        "mean": values.mean(),
                        "iqm": interquartile_mean(values),
                        "iqm_low": low,
                        "iqm_high": high,
                        "worst": values.min(),
                        "claim": len(values) >= CLAIM,
                    }
                )
    return pd.DataFrame(rows)


def interval(
    values: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray] = row_interquartile_means
) -> tuple[float, float]:
    """
    :param values: one number for each seed, (R,)
    :param statistic: what the interval is of: of each row of (R, n)
    :return: 95 % bootstrap interval; NaN where the seeds are too few for one
    """
    return bootstrap_interval(values, statistic) if len(values) >= CLAIM else (np.nan, np.nan)


def effect_table(runs: Collection[Run], seeds: pd.DataFrame, reference: str, paper: Mapping[str, Any]) -> pd.DataFrame:
    """
    The reference method against each other one. The unit is the seed; the effect size over episodes, of all seeds together,
    stands beside it, as the paper does not say what its unit is.

    :param runs: the runs
    :param seeds: one row for each run
    :param reference: label of the method that is compared with the others
    :param paper: the paper's rank-biserial correlations, by environment, quantity and label
    :return: Mann-Whitney U, exact p, p after Holm's correction over all environments and methods of the same quantity, and
        rank-biserial correlation with its 95 % bootstrap interval; positive where the reference is better
    """
    rows = []
    for env, here in seeds.groupby("environment", sort=False):
        mine = here[here["method"] == reference]
        for quantity in quantities(here.dropna(axis="columns", how="all")):
            for label, theirs in here.groupby("method", sort=False):
                values = mine[quantity].dropna().to_numpy(), theirs[quantity].dropna().to_numpy()
                if label == reference or not all(map(len, values)):
                    continue
                test = mann_whitney(*values)
                claim = min(map(len, values)) >= CLAIM
                low, high = effect_interval(*values) if claim else (np.nan, np.nan)
                pooled = [_episodes(runs, str(env), name, quantity) for name in (reference, str(label))]
                rows.append(
                    {
                        "environment": env,
                        "quantity": quantity,
                        "reference": reference,
                        "method": label,
                        "seeds": f"{len(values[0])} / {len(values[1])}",
                        "u": test.u,
                        "p": test.p,
                        "p_exact": test.exact,
                        "p_holm": np.nan,
                        "r": rank_biserial(*values),
                        "r_low": low,
                        "r_high": high,
                        "r_paper": ((paper.get(env) or {}).get(quantity) or {}).get(label, np.nan),
                        "r_episodes": rank_biserial(*pooled),
                        "p_episodes": mann_whitney(*pooled).p,
                        "claim": claim,
                    }
                )
    table = pd.DataFrame(rows)
    if len(table):
        table["p_holm"] = table.groupby("quantity")["p"].transform(holm)
    return table


def _episodes(runs: Collection[Run], env: str, label: str, quantity: str) -> np.ndarray:
    """Returns of all episodes of all seeds: of training, or of one test."""
    mine = [run for run in runs if (run.env, run.label) == (env, label)]
    if quantity == "training":
        return np.concatenate([run.episodes["return"] for run in mine])
    name = quantity.removeprefix("test: ")
    return np.concatenate([run.final.loc[run.final["test"] == name, "return"] for run in mine])


def outcome_table(runs: Collection[Run], outcomes: Mapping[str, str], paper: Mapping[str, Any]) -> pd.DataFrame:
    """
    :param runs: the runs
    :param outcomes: what the table shows: name of the column and the outcome it counts
    :param paper: the paper's percentages, by label and test, in the order of ``outcomes``
    :return: for each test and method the share of episodes with each outcome in percent, as mean over seeds with a 95 %
        bootstrap interval
    """
    rows = []
    for env, label in dict.fromkeys((run.env, run.label) for run in runs):
        mine = [run for run in runs if (run.env, run.label) == (env, label)]
        for name in mine[0].cell.environment.tests:
            row = {"environment": env, "test": name, "method": label, "name": mine[0].cell.method.name, "seeds": len(mine)}
            printed = (paper.get(label) or {}).get(name) or [np.nan] * len(outcomes)
            for (column, outcome), value in zip(outcomes.items(), printed, strict=True):
                shares = np.array([outcome_percent(run, name, outcome) for run in mine])
                low, high = interval(shares, row_means)
                row |= {column: shares.mean(), f"{column}_low": low, f"{column}_high": high, f"{column}_paper": value}
            rows.append(row)
    return pd.DataFrame(rows)


def cost_table(runs: Collection[Run]) -> pd.DataFrame:
    """
    :param runs: the runs
    :return: for each environment and method the median time of training and peak memory over seeds, and what they ran on
    """
    rows = []
    for env, label in dict.fromkeys((run.env, run.label) for run in runs):
        records = [run.record for run in runs if (run.env, run.label) == (env, label)]
        machines = {f"{record['machine']['cpu']}, {record['machine']['device']}" for record in records}
        speeds = [1000 * record["train_seconds"] / record["n_timesteps"] for record in records]
        memory = [record["peak_memory_mb"] for record in records if record["peak_memory_mb"] is not None]
        rows.append(
            {
                "environment": env,
                "method": label,
                "n_heads": float(records[0]["hyperparams"].get("n_heads", "nan")),
                "seeds": len(records),
                "seconds_per_1000_steps": np.median(speeds),
                "train_seconds": np.median([record["train_seconds"] for record in records]),
                "peak_memory_mb": np.median(memory) if memory else np.nan,
                "machine": "; ".join(sorted(machines)),
            }
        )
    return pd.DataFrame(rows)


def markdown(table: pd.DataFrame) -> str:
    """
    :param table: any table
    :return: as Markdown, numbers with four significant digits
    """
    lines = [list(table.columns), ["---"] * len(table.columns)]
    lines += [[_cell_text(value) for value in row] for row in table.itertuples(index=False)]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def _cell_text(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return str(value).replace("|", "\\|")
