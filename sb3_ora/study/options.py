"""What a study's file may say about its report."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from sb3_ora.checks import check_choice, check_flag, check_integer, check_kind

if TYPE_CHECKING:
    from sb3_ora.study.definition import Study

#: Keys of ``report`` in a study's file
OPTIONS: dict[str, Any] = {
    "window": 20,  # training episodes that a curve averages over
    "reference": "ora-cvar",  # method that is compared with the others
    "figures": {},  # labels shown together, by name of the figure; all in one if empty
    "effects": {},  # the paper's rank-biserial correlations, by environment, quantity ("training", "test: NAME") and label
    "outcomes": {},  # columns of the outcome table, with the outcome that each counts
    "paper_outcomes": {},  # the paper's percentages, by label and test
    "cost": False,  # whether to draw cost against the number of heads
}


def read_options(study: Study) -> dict[str, Any]:
    """
    :param study: the study
    :return: its options for the report, with defaults
    :raises ValueError: for an unknown option, label, environment or test
    """
    check_kind("report", study.report, Mapping, "a mapping")
    for key in study.report:
        check_choice("each key of report", key, OPTIONS)
    options = {**OPTIONS, **{key: value for key, value in study.report.items() if value is not None}}
    labels = [method.label for method in study.methods]
    check_integer("report.window", options["window"])
    check_flag("report.cost", options["cost"])
    if "reference" in study.report:
        check_choice("report.reference", options["reference"], labels)
    check_kind("report.outcomes", options["outcomes"], Mapping, "a mapping")
    check_kind("report.figures", options["figures"], Mapping, "a mapping")
    for name, shown in options["figures"].items():
        check_kind(f"report.figures.{name}", shown, list, "a list of labels")
        for label in shown:
            check_choice(f"each label of report.figures.{name}", label, labels)
    _check_effects(study, options["effects"], labels)
    _check_outcomes(study, options["paper_outcomes"], labels, list(options["outcomes"]))
    return options


def _check_effects(study: Study, given: Any, labels: Collection[str]) -> None:
    """By environment, quantity and label."""
    quantities = {env.env_id: ["training", *(f"test: {test}" for test in env.tests)] for env in study.environments}
    for env_id, by_quantity in _entries("report.effects", given, quantities):
        for quantity, by_label in _entries(f"report.effects.{env_id}", by_quantity, quantities[env_id]):
            for _ in _entries(f"report.effects.{env_id}.{quantity}", by_label, labels):
                pass


def _check_outcomes(study: Study, given: Any, labels: Collection[str], columns: list[str]) -> None:
    """By label and test, a number for each column."""
    tests = list(dict.fromkeys(test for environment in study.environments for test in environment.tests))
    for label, by_test in _entries("report.paper_outcomes", given, labels):
        for test, printed in _entries(f"report.paper_outcomes.{label}", by_test, tests):
            if not isinstance(printed, list) or len(printed) != len(columns):
                wanted = f"a number for each of {columns}"
                raise ValueError(f"report.paper_outcomes.{label}.{test} must have {wanted}, got {printed!r}")


def _entries(where: str, given: Any, allowed: Collection[str]) -> list[tuple[str, Any]]:
    """The entries of a mapping, or none, whose keys are checked."""
    check_kind(where, given or {}, Mapping, "a mapping")
    for key in given or {}:
        check_choice(f"each key of {where}", key, allowed)
    return list((given or {}).items())
