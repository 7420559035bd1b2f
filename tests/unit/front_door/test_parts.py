"""The parts of a run: which folder a test counts for, and the lines at the end."""

from __future__ import annotations

import pytest

from tests.parts import Part, lines, part_of


@pytest.mark.parametrize(
    ("nodeid", "part"),
    [
        ("tests/unit/core/test_ledgers.py::test_x[a/b]", "tests/unit"),
        ("tests/acceptance/browser/test_verbs.py::test_x", "tests/acceptance/browser"),
        ("tests/integration/web/webhooks/test_wiring.py::TestX::test_x", "tests/integration/web"),
        ("tests/conformance/test_engines.py::test_x", "tests/conformance"),
        ("test_alone.py::test_x", "tests"),
    ],
)
def test_a_test_counts_for_its_folder(nodeid: str, part: str) -> None:
    assert part_of(nodeid) == part


def test_the_part_that_takes_longest_is_first() -> None:
    parts = {"tests/unit": Part({"a", "b"}, 1.0, 0.9), "tests/faults": Part({"c"}, 60.0, 20.0)}

    assert [" ".join(line.split()) for line in lines(parts)] == [
        "60.0 s, 20.0 s of CPU time, 1 tests tests/faults",
        "1.0 s, 0.9 s of CPU time, 2 tests tests/unit",
    ]
