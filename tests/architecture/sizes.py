"""Lengths of files and functions; ``python -m tests.architecture.sizes`` prints them.

Good code of this field has a median file of about 100 lines and a median function of 7 to 10; what
sets it apart is the tail, so that is where the budgets are.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.architecture.tree import PACKAGES, name, python_files

FILE_LINES = 490
FUNCTION_LINES = 60
#: Nine of ten functions are at most this long.
FUNCTION_LINES_P90 = 35


class Size(NamedTuple):
    """Something and its lines."""

    lines: int
    where: str


def file_sizes(paths: Sequence[Path]) -> list[Size]:
    """Return each file with its lines."""
    return [Size(len(path.read_text().splitlines()), name(path)) for path in paths]


def function_sizes(source: str, where: str) -> list[Size]:
    """Return each function with its lines, from ``def`` to its end, docstring included."""
    return [
        Size(
            (node.end_lineno or node.lineno) - node.lineno + 1, f"{where}:{node.lineno} {node.name}"
        )
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def all_function_sizes(paths: Sequence[Path]) -> list[Size]:
    """Return the functions of all files."""
    return [size for path in paths for size in function_sizes(path.read_text(), name(path))]


def p90(sizes: Sequence[Size]) -> int:
    """Return the length that nine of ten do not pass."""
    lines = sorted(size.lines for size in sizes)
    return lines[int(0.9 * (len(lines) - 1))]


def summary(title: str, sizes: Sequence[Size]) -> str:
    """Return one line of the table."""
    median = statistics.median(size.lines for size in sizes)
    longest = max(sizes)
    return (
        f"{title:<22} {len(sizes):>5}  median {median:>5.0f}  p90 {p90(sizes):>4}"
        f"  longest {longest.lines} ({longest.where})"
    )


def main() -> None:
    """Print the table."""
    for title, folders in (("source", PACKAGES), ("tests", ("tests",))):
        paths = python_files(*folders)
        sys.stdout.write(summary(f"{title} files", file_sizes(paths)) + "\n")
        sys.stdout.write(summary(f"{title} functions", all_function_sizes(paths)) + "\n")


if __name__ == "__main__":
    main()
