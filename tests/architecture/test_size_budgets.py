"""Files and functions stay short enough to be read in one go."""

from __future__ import annotations

from tests.architecture.sizes import (
    FILE_LINES,
    FUNCTION_LINES,
    FUNCTION_LINES_P90,
    all_function_sizes,
    file_sizes,
    function_sizes,
    p90,
)
from tests.architecture.tree import PACKAGES, python_files

#: Files or functions that may pass a budget. It only ever gets shorter.
ALLOWED: frozenset[str] = frozenset()


def test_no_file_passes_the_hard_stop():
    sizes = file_sizes(python_files())

    assert [size for size in sizes if size.lines > FILE_LINES and size.where not in ALLOWED] == []


def test_no_function_passes_the_hard_stop():
    sizes = all_function_sizes(python_files())

    assert [
        size for size in sizes if size.lines > FUNCTION_LINES and size.where not in ALLOWED
    ] == []


def test_nine_of_ten_functions_are_short():
    assert p90(all_function_sizes(python_files(*PACKAGES))) <= FUNCTION_LINES_P90


def test_a_function_is_measured_from_its_first_to_its_last_line():
    source = "def outer():\n    '''Say.'''\n\n    async def inner():\n        return 1\n    return inner\n"

    assert [(size.lines, size.where) for size in function_sizes(source, "m.py")] == [
        (6, "m.py:1 outer"),
        (2, "m.py:4 inner"),
    ]
