"""Documents that are made from code say what the code says."""

from __future__ import annotations

import re

from docs.state_machines import DOCUMENT, document
from tests.architecture.tree import ROOT


def test_state_machines_are_drawn_from_the_transition_table():
    assert DOCUMENT.read_text() == document(), "run `make docs`"


def test_every_setting_is_documented_for_operators():
    source = (ROOT / "tangram_web" / "settings.py").read_text()
    settings = set(re.findall(r'\benv_\w+\(\s*"(\w+)"', source))
    reported = (ROOT / "docs" / "operations.md").read_text()

    assert {"TANGRAM_HOME", "DATABASE_URL"} < settings
    assert {name for name in settings if f"`{name}" not in reported} == set()
