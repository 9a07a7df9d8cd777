"""Runs cells, each in a process of its own, on the engines that joblib knows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sb3_ora.checks import check_choice
from sb3_ora.study.definition import Cell
from sb3_ora.study.state import LOG, state_of

BACKENDS = ("loky", "dask", "ray")


class Outcome(NamedTuple):
    """How the process of a cell ended."""

    name: str
    log: str
    code: int
    message: str


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


def run_cells(cells: Sequence[Cell], jobs: int = 1, backend: str = "loky", address: str | None = None) -> list[Outcome]:
    """
    Run the cells that are not complete, with a progress bar over them. A cell that fails does not stop the others.

    :param cells: the cells
    :param jobs: how many run at once; with "dask" and "ray" the cluster decides
    :param backend: "loky" for this machine, "dask" or "ray" for a cluster
    :param address: of the cluster, such as "tcp://10.0.0.1:8786"
    :return: the outcomes other than success
    """
    import joblib
    from tqdm import tqdm

    todo = [cell for cell in cells if state_of(cell) != "complete"]
    calls = [joblib.delayed(run_process)(cell.name, cell.command, str(cell.folder / LOG)) for cell in todo]
    failed = []
    with engine(backend, address):
        # A worker that is lost takes one cell with it: no batches
        parallel = joblib.Parallel(
            jobs if backend == "loky" else -1, return_as="generator_unordered", batch_size=1, pre_dispatch="all"
        )
        with tqdm(total=len(cells), initial=len(cells) - len(todo), unit="cell", smoothing=0) as bar:
            for outcome in parallel(calls) if calls else ():
                if outcome.code:
                    failed.append(outcome)
                    bar.write(f"failed: {outcome.name}, see {outcome.log}\n{outcome.message}")
                bar.update()
    return failed


@contextmanager
def engine(backend: str, address: str | None) -> Iterator[None]:
    """
    Let joblib use an engine.

    :param backend: one of ``BACKENDS``
    :param address: of its cluster; None for a new one on this machine
    """
    import joblib

    check_choice("backend", backend, BACKENDS)
    if backend == "loky":
        if address is not None:
            raise ValueError(f"address={address!r} has no meaning with backend='loky'")
        with joblib.parallel_config("loky"):
            yield
    elif backend == "dask":
        from distributed import Client

        with Client(address, set_as_default=False) as client, joblib.parallel_config("dask", client=client):
            yield
    else:
        import ray
        from ray.util.joblib import register_ray

        ray.init(address=address)
        register_ray()
        with joblib.parallel_config("ray"):
            yield
