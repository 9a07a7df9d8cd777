"""
Runs a script of rl_zoo3 after registering: ``python -m sb3_ora.zoo train --algo ora_iqn --env CartPole-v1``.
``python -m sb3_ora.zoo resume FOLDER`` continues a run that was killed and had checkpoints.
"""

import argparse
import runpy
import sys
import warnings
from pathlib import Path
from unittest import mock

from sb3_ora.zoo import register

SCRIPTS = {
    "train": "rl_zoo3.train",
    "enjoy": "rl_zoo3.enjoy",
    "plot_train": "rl_zoo3.plots.plot_train",
    "all_plots": "rl_zoo3.plots.all_plots",
    "plot_from_file": "rl_zoo3.plots.plot_from_file",
    "record_video": "rl_zoo3.record_video",
}
USAGE = f"""usage: python -m sb3_ora.zoo {{{",".join(SCRIPTS)}}} [arguments of that rl_zoo3 script, try --help]
       python -m sb3_ora.zoo resume FOLDER"""


def resume(arguments: list[str]) -> None:
    """
    Continue a run of ``rl_zoo3.train`` from its last checkpoint.

    :param arguments: the folder of the run, such as logs/ora_iqn/CartPole-v1_1
    :raises SystemExit: with the reason, when it cannot be continued
    """
    from rl_zoo3.exp_manager import ExperimentManager

    from sb3_ora.checkpoint import CheckpointError
    from sb3_ora.zoo.resuming import continue_in, saved_arguments

    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(USAGE, file=None if arguments[:1] in (["-h"], ["--help"]) else sys.stderr)
        raise SystemExit(0 if arguments[:1] in (["-h"], ["--help"]) else 2)
    folder = Path(arguments[0]).resolve()
    register()
    try:
        values, settings = saved_arguments(folder)
        continue_in(folder, settings, ExperimentManager)
        with mock.patch.object(argparse.ArgumentParser, "parse_args", lambda *_: values):
            runpy.run_module("rl_zoo3.train", run_name="__main__", alter_sys=True)
    except CheckpointError as error:
        raise SystemExit(f"error: {error}") from error


def main(arguments: list[str]) -> None:
    """
    Register and run one script of rl_zoo3 in this process.

    :param arguments: name of the script, then its own arguments.
    :raises SystemExit: with the usage line, when the name is missing or unknown.
    """
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help"):
        print(USAGE)
        return
    if name == "resume":
        resume(arguments[1:])
        return
    if name not in SCRIPTS:
        print(USAGE, f"error: unknown script {name!r}" if name else "error: no script given", sep="\n", file=sys.stderr)
        raise SystemExit(2)
    register()
    sys.argv[1:] = arguments[1:]
    with warnings.catch_warnings():
        # rl_zoo3.plots imports its own scripts, runpy remarks on that
        warnings.filterwarnings("ignore", message=".*found in sys.modules", category=RuntimeWarning)
        runpy.run_module(SCRIPTS[name], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
