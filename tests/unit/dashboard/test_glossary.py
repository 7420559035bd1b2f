"""Terms on pages have a meaning, and the glossary of the console is the one of the documents."""

from __future__ import annotations

import re

import pytest

from domain.policies import parse_policy
from tangram_web.dashboard.glossary import SOURCE, glossary, term_of
from tangram_web.dashboard.templatetags.console import term
from tests.architecture.tree import ROOT

TEMPLATES = sorted((ROOT / "tangram_web").rglob("*.html"))


def test_the_packaged_copy_equals_the_document():
    document = ROOT / "docs/glossary.md"

    assert SOURCE.read_text() == document.read_text(), f"cp {document} {SOURCE}"


def test_every_row_of_the_document_is_a_term():
    rows = re.findall(r"^\| \*\*", SOURCE.read_text(), re.MULTILINE)

    assert len(glossary()) == len(rows) > 50
    assert len({each.anchor for each in glossary()}) == len(rows)


def test_every_term_on_a_page_is_in_the_glossary():
    found = [
        word for page in TEMPLATES for word in re.findall(r'\{% term "([^"]+)"', page.read_text())
    ]

    assert len(found) > 30
    assert [word for word in found if term_of(word) is None] == []


@pytest.mark.parametrize(
    "policy", ["paper", "minimum", "fixed(4)", "balanced", "malleable", "makespan", "weighted"]
)
def test_every_policy_has_a_meaning(policy: str):
    assert parse_policy(policy)
    assert term_of(policy) is not None


def test_a_term_is_a_link_with_its_meaning_as_title():
    link = term("ACT")

    assert link.startswith('<a class="term" href="/glossary/#act" title="action completion time')
    assert term("chunks", "blocks").endswith(">blocks</a>")


def test_a_word_without_an_entry_is_text():
    assert term("<b>") == "&lt;b&gt;"
