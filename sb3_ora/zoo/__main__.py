"""Runs a script of rl_zoo3 after registering: ``python -m sb3_ora.zoo train --algo ora_iqn --env CartPole-v1``."""

import runpy
import sys
import warnings

from sb3_ora.zoo import register

SCRIPTS = {
    "train": "rl_zoo3.train",
    "enjoy": "rl_zoo3.enjoy",
    "plot_train": "rl_zoo3.plots.plot_train",
    "all_plots": "rl_zoo3.plots.all_plots",
    "plot_from_file": "rl_zoo3.plots.plot_from_file",
    "record_video": "rl_zoo3.record_video",
}
USAGE = f"usage: python -m sb3_ora.zoo {{{','.join(SCRIPTS)}}} [arguments of that rl_zoo3 script, try --help]"


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
