"""The process of a cell: where it prints to, and when it ends."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """
    Send what this process and its children print to a file.

    :param path: file to write
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    with path.open("a") as file:  # a second process of the same cell, which waits, must not empty it
        try:
            for descriptor in (1, 2):
                os.dup2(file.fileno(), descriptor)
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, old in zip((1, 2), kept, strict=True):
                os.dup2(old, descriptor)
                os.close(old)


def end_with_parent() -> None:
    """End this process when the one that holds the other end of its standard input is gone, however it ended."""

    def wait() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock would be held at exit
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
