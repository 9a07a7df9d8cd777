"""Run a study, see how far it is, and report: ``python -m sb3_ora.study run studies/cartpole.yml --jobs 2``."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections import Counter
from pathlib import Path

import filelock

# Before torch is imported: a cell has one thread
os.environ.setdefault("OMP_NUM_THREADS", "1")

from sb3_ora.study.definition import OUTPUT, Cell, Study, load_study
from sb3_ora.study.process import end_with_parent, output_to
from sb3_ora.study.runner import BACKENDS, check_installed, run_cells
from sb3_ora.study.state import LOG, RUNS_ELSEWHERE, STATES, state_of


def build_parser() -> argparse.ArgumentParser:
    """
    :return: the command line
    """
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("study", type=Path, help="YAML file of the study")
    common.add_argument("--config", default="tuned", help="configuration of the study, 'tuned' or 'paper'")
    common.add_argument("--output", type=Path, default=OUTPUT, help="folder that holds the folders of studies")
    several = argparse.ArgumentParser(add_help=False)
    several.add_argument("--seeds", type=int, help="how many seeds, instead of the number in the file")
    several.add_argument("--only", nargs="+", default=[], metavar="NAME", help="labels, algorithms or environments")

    parser = argparse.ArgumentParser(prog="python -m sb3_ora.study", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", parents=[common, several], help="run the cells that are not complete")
    run.add_argument("--jobs", type=int, default=1, help="cells that run at once on this machine")
    run.add_argument("--backend", choices=BACKENDS, default="threading", help="engine of joblib")
    run.add_argument("--address", help="of a Dask scheduler or a Ray cluster")
    run.add_argument("--print-commands", action="store_true", help="only print one shell line for each cell to run")
    commands.add_parser("status", parents=[common, several], help="how many cells are complete, and which are not")
    report = commands.add_parser("report", parents=[common, several], help="draw figures and tables")
    report.add_argument("--to", type=Path, help="folder of the report; <study>/report if not given, with the names of --only")
    cell = commands.add_parser("cell", parents=[common], help="run one cell in this process")
    cell.add_argument("--label", required=True, help="label of the method")
    cell.add_argument("--env", required=True, help="environment")
    cell.add_argument("--seed", type=int, required=True)
    cell.add_argument("--end-with-parent", action="store_true", help=argparse.SUPPRESS)
    return parser


def run(study: Study, args: argparse.Namespace) -> int:
    """
    :param study: the study
    :param args: command line
    :return: exit status
    """
    cells = study.cells(args.only)
    todo = [cell for cell in cells if state_of(cell) in ("incomplete", "missing")]
    if args.print_commands:
        for cell in todo:
            print(cell.shell_line)
        return 0
    check_installed(args.backend)
    if todo:
        from sb3_ora.study.checking import check_cells  # imports rl-zoo3

        check_cells(todo)
    failed = run_cells(cells, args.jobs, args.backend, args.address)
    if failed:
        lines = [f"  {cell.log}: {cell.reason}" for cell in failed]
        print(f"{len(failed)} of {len(cells)} cells failed:", *lines, sep="\n", file=sys.stderr)
    return 1 if failed else 0


def status(study: Study, args: argparse.Namespace) -> int:
    """
    :param study: the study
    :param args: command line
    :return: exit status
    """
    cells = study.cells(args.only)
    states = {cell.name: state_of(cell) for cell in cells}
    counts = Counter(states.values())
    print(f"{study.root}: " + ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]))
    for name, state in states.items():
        if state in ("running", "incomplete", "changed"):
            print(f"  {state:10} {study.root / name / LOG}")
    return 0


def report(study: Study, args: argparse.Namespace) -> int:
    """
    :param study: the study
    :param args: command line
    :return: exit status
    """
    from sb3_ora.study.report import NOTHING, write_report

    part = "-".join(["report", *args.only]).replace("/", "-")  # a part does not replace the whole
    print(write_report(study, args.to or study.root / part, args.only))
    if not any(state_of(cell) == "complete" for cell in study.cells(args.only)):
        print(NOTHING, file=sys.stderr)
    return 0


def run_one(study: Study, args: argparse.Namespace) -> int:
    """
    :param study: the study
    :param args: command line
    :return: exit status
    """
    if args.end_with_parent:
        end_with_parent()
    cell = find_cell(study, args.label, args.env)
    log = cell.folder / LOG
    try:
        with output_to(log):
            try:
                from sb3_ora.study.cell import run_cell

                run_cell(cell)
            except filelock.Timeout:  # the log is that of the process which runs the cell
                raise
            except BaseException:
                traceback.print_exc()
                raise
    except Exception as error:
        print(f"{type(error).__name__}: {error}\n{log}", file=sys.stderr)
        return RUNS_ELSEWHERE if isinstance(error, filelock.Timeout) else 1
    return 0


def find_cell(study: Study, label: str, env_id: str) -> Cell:
    """
    :param study: study with one seed
    :param label: label of a method
    :param env_id: environment
    :return: its cell
    :raises ValueError: if there is none
    """
    for cell in study.cells():
        if (cell.method.label, cell.environment.env_id) == (label, env_id):
            return cell
    raise ValueError(f"{study.path.name} has no method {label!r} with environment {env_id!r}")


def main(arguments: list[str] | None = None) -> int:
    """
    :param arguments: command line; None for that of the process
    :return: exit status
    """
    args = build_parser().parse_args(arguments)
    seeds = [args.seed] if args.command == "cell" else args.seeds
    try:
        study = load_study(args.study, args.config, args.output, seeds)
        return {"run": run, "status": status, "report": report, "cell": run_one}[args.command](study, args)
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has had enough, as `head` after its lines
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
        code = 1
    sys.exit(code)
