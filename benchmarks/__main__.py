"""
Speed of the learners and environments of this package, beside those of others. See ``benchmarks/README.md``.

``python -m benchmarks`` runs all parts but ``gpu``; ``--part`` chooses some, ``--quick`` shows only that they work.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch and NumPy are imported
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch as th

from benchmarks.against_peers import run_memory, run_peers
from benchmarks.curves import run_adaptation, run_curves
from benchmarks.environments import run_environments
from benchmarks.gpu import run_gpu
from benchmarks.profiles import run_profile
from benchmarks.report import RESULTS, Row, plot, print_rows, write_csv

PARTS: dict[str, Callable[[bool], list[Row]]] = {
    "peers": run_peers,
    "curves": run_curves,
    "adaptation": run_adaptation,
    "memory": run_memory,
    "environments": run_environments,
    "profile": run_profile,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """
    :param arguments: of the command line; None for those of this process
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").strip().split("\n\n")[0])
    parser.add_argument("--part", action="append", choices=[*PARTS, "gpu"], help="only this part; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few steps: shows that it works, not how fast; nothing is saved")
    parser.add_argument("--device", default="cuda", help="of the part gpu (default %(default)s)")
    parser.add_argument("--game", help="an Atari game for the part gpu, such as PongNoFrameskip-v4; needs the extra atari")
    parser.add_argument(
        "--results", type=Path, help=f"folder for CSV files and plots (default {RESULTS.name} beside this file)"
    )
    args = parser.parse_args(arguments)
    if "gpu" in (args.part or ()) and th.device(args.device).type == "cuda" and not th.cuda.is_available():
        parser.error(f"--device {args.device}: torch finds no card here; cpu only shows that the part works")
    folder = args.results or (None if args.quick else RESULTS)
    th.set_num_threads(1)
    for part in args.part or PARTS:
        print(f"\n== {part} ==", flush=True)
        device = args.device if part == "gpu" else "cpu"
        rows = run_gpu(args.quick, device, args.game) if part == "gpu" else PARTS[part](args.quick)
        print_rows(rows, device)
        if folder is not None:
            print(f"written: {write_csv(part, rows, folder, device)} {plot(part, rows, folder, device) or ''}", flush=True)


if __name__ == "__main__":
    main()
