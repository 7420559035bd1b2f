"""Documents that are made from code say what the code says."""

from __future__ import annotations

from docs.state_machines import DOCUMENT, document


def test_state_machines_are_drawn_from_the_transition_table():
    assert DOCUMENT.read_text() == document(), "run `make docs`"
