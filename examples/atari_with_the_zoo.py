"""
Train and watch ORAIQN on an Atari game through rl-zoo3. Needs the extra ``[atari]``.

The settings are those of ``hyperparams/ora_iqn.yml`` under ``atari``: 10 million steps, for a GPU. What this script
runs is also what you can type:

    python -m rl_zoo3.train --algo ora_iqn --env MsPacmanNoFrameskip-v4 -f logs
    python -m rl_zoo3.enjoy --algo ora_iqn --env MsPacmanNoFrameskip-v4 -f logs
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def zoo(script: str, *options: object) -> None:
    """
    Run a script of rl-zoo3 and print its command. ``sb3_ora.zoo`` works where the start-up hook does not, too.

    :param script: "train" or "enjoy"
    :param options: its options
    """
    command = [sys.executable, "-m", "sb3_ora.zoo", script, *map(str, options)]
    print(" ".join(command), flush=True)
    subprocess.run(command, check=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train and watch ORAIQN on an Atari game through rl-zoo3.")
    parser.add_argument("--game", default="MsPacman", help="such as MsPacman, Hero, SpaceInvaders")
    parser.add_argument("--steps", type=int, default=10_000_000, help="environment steps of training (of four frames)")
    parser.add_argument("--output", type=Path, default=Path("logs"), help="log folder")
    parser.add_argument("--learning-starts", type=int, default=50_000, help="random steps before training")
    parser.add_argument("--buffer-size", type=int, default=100_000, help="replayed steps; 56 kB each")
    args = parser.parse_args(arguments)

    run = ("--algo", "ora_iqn", "--env", f"{args.game}NoFrameskip-v4", "-f", args.output)
    sizes = (f"learning_starts:{args.learning_starts}", f"buffer_size:{args.buffer_size}")
    zoo("train", *run, "-n", args.steps, "-params", *sizes)
    zoo("enjoy", *run, "-n", min(args.steps, 5_000), "--no-render")


if __name__ == "__main__":
    main()
