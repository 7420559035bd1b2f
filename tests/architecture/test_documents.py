"""Documents that are made from code say what the code says."""

from __future__ import annotations

import re

import pytest

from docs import layers
from docs.state_machines import DOCUMENT, document
from tests.architecture.tree import PACKAGES, ROOT, name


def test_state_machines_are_drawn_from_the_transition_table():
    assert DOCUMENT.read_text() == document(), "run `make docs`"


def test_every_setting_is_documented_for_operators():
    source = (ROOT / "tangram_web" / "settings.py").read_text()
    settings = set(re.findall(r'\benv_\w+\(\s*"(\w+)"', source))
    reported = (ROOT / "docs" / "operations.md").read_text()

    assert {"TANGRAM_HOME", "DATABASE_URL"} < settings
    assert {name for name in settings if f"`{name}" not in reported} == set()


def test_modules_that_documents_name_exist():
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    packages = "|".join((*PACKAGES, "benchmarks", "docs", "examples", "tests"))
    named = re.compile(rf"`((?:{packages})/[\w/]+\.(?:py|js|html|lua))`")
    missing = [
        f"{name(document)}: {path}"
        for document in documents
        for path in named.findall(document.read_text())
        if not (ROOT / path).exists()
    ]

    assert missing == []


@pytest.mark.parametrize("theme", layers.THEMES, ids=lambda theme: theme.name)
def test_the_layers_are_drawn_from_the_import_contracts(theme):
    assert layers.path(theme).read_text() == layers.picture(theme), "run `make docs`"
