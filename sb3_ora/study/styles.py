"""Colour, line, marker and hatch of each method: the same in every figure, and different without colour."""

from __future__ import annotations

import itertools
import zlib
from typing import NamedTuple, TypeAlias

Line: TypeAlias = str | tuple[int, tuple[int, ...]]


class Style(NamedTuple):
    """How a method looks."""

    color: str
    line: Line
    marker: str
    hatch: str


LINES: tuple[Line, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
#: Colours of Okabe and Ito
COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "//", "\\\\", "xx", "..", "--", "++", "oo")

STYLES: dict[str, Style] = {
    "ora-cvar": Style("#D55E00", "-", "o", ""),
    "ora-quantile": Style("#E69F00", "--", "s", "//"),
    "ora-recursive": Style("#A6761D", "-.", "^", "\\\\"),
    "composite": Style("#000000", ":", "D", "xx"),
    "art": Style("#009E73", (0, (5, 1)), "v", ".."),
    "top": Style("#CC79A7", (0, (3, 1, 1, 1, 1, 1)), "P", "--"),
    "dqn": Style("#7F7F7F", "--", "X", "++"),
    "iqn": Style("#0072B2", "-", "*", "oo"),
    "iqn-0.1": Style("#08306B", "-", "s", "///"),
    "iqn-0.5": Style("#2171B5", "--", "o", "\\\\\\"),
    "iqn-0.9": Style("#6BAED6", "-.", "*", "xxx"),
    "iqn-1.0": Style("#56B4E9", ":", "v", "..."),
    "iqn-19": Style("#807DBA", "--", "D", "---"),
    "iqn-91": Style("#B07AA1", "-.", "X", "+++"),
    "iqn-191": Style("#54278F", "-", "P", "ooo"),
    "ora-k2": Style("#FDBE85", ":", "s", "/"),
    "ora-k4": Style("#FD8D3C", "-.", "D", "\\"),
    "ora-k8": Style("#E6550D", "--", "v", "x"),
    "ora-k16": Style("#D55E00", (0, (5, 1)), "P", "."),
    "ora-k32": Style("#7F2704", "-", "X", "*"),
}


def style_of(label: str) -> Style:
    """
    :param label: label of a method
    :return: its style; for a label that is not in ``STYLES`` one that depends on nothing but the label
    """
    if label in STYLES:
        return STYLES[label]
    combinations = list(itertools.product(COLORS, LINES, MARKERS, HATCHES))
    return Style(*combinations[zlib.crc32(label.encode()) % len(combinations)])
