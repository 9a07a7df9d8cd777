"""Runs cells, each in a process of its own, on this machine or a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import NamedTuple, TypeAlias

from sb3_ora.checks import check_choice
from sb3_ora.study.definition import Cell
from sb3_ora.study.state import LOG, RUNS_ELSEWHERE, is_complete, state_of
from sb3_ora.zoo.extras import INSTALL

BACKENDS = ("threading", "dask", "ray")
#: Arguments of :func:`run_process`
Call: TypeAlias = tuple[str, list[str], str]


class Outcome(NamedTuple):
    """How the process of a cell ended."""

    name: str
    log: str
    code: int
    message: str

    @property
    def reason(self) -> str:
        """Last line of the message, which ends with the path of the log."""
        lines = [line.strip() for line in self.message.splitlines() if line.strip() not in ("", self.log)]
        return lines[-1] if lines else f"ended with {self.code}"


def run_process(name: str, command: list[str], log: str) -> Outcome:
    """
    Run one cell and wait for it. Called wherever the backend has a worker; the process ends with that worker.

    :param name: name of the cell
    :param command: what runs it
    :param log: where it prints to
    :return: how it ended
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, *command[1:], "--end-with-parent"],  # the worker's own Python
        stdin=subprocess.PIPE,  # closed when this process ends, whatever ends it
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        text=True,
    )
    assert process.stdout is not None
    message = process.stdout.read()
    return Outcome(name, log, process.wait(), message.strip())


def run_cells(cells: Sequence[Cell], jobs: int = 1, backend: str = "threading", address: str | None = None) -> list[Outcome]:
    """
    Run the cells that are not complete, with a progress bar over them. A cell that fails does not stop the others.

    :param cells: the cells
    :param jobs: how many run at once; with "dask" and "ray" the cluster decides
    :param backend: "threading" for this machine, "dask" or "ray" for a cluster
    :param address: of the cluster, such as "tcp://10.0.0.1:8786"; None for a new one on this machine
    :return: the outcomes other than success, without cells that another process runs
    :raises ValueError: if the backend is not installed
    """
    from tqdm import tqdm

    check_choice("backend", backend, BACKENDS)
    if backend == "threading" and address is not None:
        raise ValueError(f"address={address!r} has no meaning with backend='threading'")
    check_installed(backend)
    states = {cell.name: state_of(cell) for cell in cells}
    failed = [refusal(cell) for cell in cells if states[cell.name] == "changed"]
    for outcome in failed:
        print(f"not run: {outcome.name}: {outcome.message}")
    todo = [cell for cell in cells if states[cell.name] not in ("complete", "changed")]
    calls: list[Call] = [(cell.name, cell.command, str(cell.folder / LOG)) for cell in todo]
    outcomes = _on_ray(calls, address) if backend == "ray" else _on_joblib(calls, jobs, backend, address)
    with tqdm(total=len(cells), initial=len(cells) - len(todo), unit="cell", smoothing=0) as bar:
        for outcome in outcomes if calls else ():
            if outcome.code == RUNS_ELSEWHERE:
                bar.write(f"left to the process that runs it: {outcome.name}")
            elif outcome.code:
                failed.append(outcome)
                bar.write(f"failed: {outcome.name}, see {outcome.log}\n{outcome.message}")
            bar.update()
    return failed


def check_installed(backend: str) -> None:
    """
    :param backend: one of ``BACKENDS``
    :raises ValueError: if its package is not installed
    """
    module, hint = {
        "threading": ("joblib", "joblib: pip install joblib"),
        "dask": ("distributed", f"the extra [cluster]: {INSTALL.format('cluster')}"),
        "ray": ("ray", "ray: pip install ray"),
    }[backend]
    if find_spec(module) is None:
        raise ValueError(f"backend {backend!r} needs {hint}")


def refusal(cell: Cell) -> Outcome:
    """
    :param cell: a cell with results of other settings
    :return: outcome without a process
    """
    log = str(cell.folder / LOG)
    try:
        is_complete(cell)
    except ValueError as error:
        return Outcome(cell.name, log, 1, str(error))
    return Outcome(cell.name, log, 1, "it has changed while it was looked at: run again")


def _on_joblib(calls: list[Call], jobs: int, backend: str, address: str | None) -> Iterator[Outcome]:
    """Outcomes as they come, from processes of this machine or a Dask cluster."""
    import joblib

    with ExitStack() as stack:
        if backend == "dask":
            from distributed import Client

            client = stack.enter_context(Client(address, set_as_default=False))
            stack.enter_context(joblib.parallel_config("dask", client=client))
            jobs = -1
        else:
            # Cells are processes already: with threads to wait for them, they end when this process does
            stack.enter_context(joblib.parallel_config("threading"))
        # A worker that is lost takes one cell with it: no batches
        parallel = joblib.Parallel(jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="all")
        yield from parallel(joblib.delayed(run_process)(*call) for call in calls)


def _on_ray(calls: list[Call], address: str | None) -> Iterator[Outcome]:
    """Outcomes as they come, from a Ray cluster. (Its engine for joblib returns nothing before everything is done.)"""
    import ray

    ray.init(address=address)
    try:
        remote = ray.remote(num_cpus=1)(run_process)
        call_of = {remote.remote(*call): call for call in calls}
        pending = list(call_of)
        while pending:
            (ready,), pending = ray.wait(pending)
            try:
                yield ray.get(ready)
            except ray.exceptions.RayError as error:  # its worker was lost too often
                name, _, log = call_of[ready]
                yield Outcome(name, log, 1, str(error))
    finally:
        ray.shutdown()
