"""
Runs a script of rl_zoo3 after registering: ``python -m sb3_ora.zoo train --algo ora_iqn --env CartPole-v1``.
``python -m sb3_ora.zoo resume FOLDER`` continues a run that was killed and had checkpoints.
"""

import argparse
import runpy
import sys
import warnings
from pathlib import Path

from sb3_ora.zoo import register
from sb3_ora.zoo.extras import missing_extra

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
    from rl_zoo3 import exp_manager

    from sb3_ora.checkpoint import CheckpointError
    from sb3_ora.zoo.resuming import manager_of, saved_arguments, swapped

    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(USAGE, file=None if arguments[:1] in (["-h"], ["--help"]) else sys.stderr)
        raise SystemExit(0 if arguments[:1] in (["-h"], ["--help"]) else 2)
    folder = Path(arguments[0]).resolve()
    register()
    try:
        values, settings = saved_arguments(folder)
        with (
            swapped(exp_manager, "ExperimentManager", manager_of(folder, settings)),
            swapped(argparse.ArgumentParser, "parse_args", lambda *_: values),
        ):
            runpy.run_module("rl_zoo3.train", run_name="__main__", alter_sys=True)
    except CheckpointError as error:
        raise SystemExit(f"error: {error}") from error


def main(arguments: list[str]) -> None:
    """
    Register and run one script of rl_zoo3 in this process.

    :param arguments: name of the script, then its own arguments.
    :raises SystemExit: with the usage line, when the name is missing or unknown.
    :raises ValueError: what rl_zoo3 raises; for an environment of an extra that is not installed, with its name.
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
        try:
            runpy.run_module(SCRIPTS[name], run_name="__main__", alter_sys=True)
        except ValueError as error:
            env_id, _, what = str(error).partition(" ")
            hint = missing_extra(env_id) if what.startswith("not found in gym registry") else None
            if hint is None:
                raise
            raise ValueError(hint) from None  # the closest match among what is installed is another environment


if __name__ == "__main__":
    main(sys.argv[1:])
