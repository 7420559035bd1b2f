"""The tree is what the documents promise, and its text speaks of the project alone."""

from __future__ import annotations

import ast
import re

import pytest

from tests.architecture.tree import ROOT, files, name, own_files, python_files

TOP_LEVEL = frozenset(
    ".ci .dockerignore .gitattributes .gitignore CHANGELOG.md CONTRIBUTING.md Dockerfile LICENSE Makefile README.md benchmarks"
    " contract deploy dispatcher docker-compose.yml docs domain examples facades frontend manage.py managers placement pyproject.toml requirements rollout scheduler simulator tangram tangram_client"
    " tangram_web tests".split()
)
#: Each is written so that this file does not match itself.
FORBIDDEN = {
    "path of one machine": r"/(?:work|root|home|Users)/[a-z.]",
    "host of a package registry": r"(?:pypi|pythonhosted|npmjs)[.](?:org|com)",
    "unfinished work": r"\b(?:TO[D]O|FI[X]ME|X[X]X|HA[C]K)\b|NotImplemented[E]rror",
    "test left out for good": r"mark[.](?:ski[p]\b|xfai[l])",
}


#: Code in a document; what looks like a link there belongs to another file.
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def test_top_level_is_as_promised():
    assert {path.relative_to(ROOT).parts[0] for path in files()} <= TOP_LEVEL


def test_readme_fits_on_a_few_screens():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_relative_links_of_documents_lead_somewhere():
    documents = [path for path in own_files() if path.suffix == ".md"]
    missing = [
        f"{name(document)}: {link}"
        for document in documents
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", FENCED.sub("", document.read_text()))
        if not (document.parent / link).exists()
    ]

    assert missing == []


def test_every_module_says_what_it_is_for():
    silent = [
        name(path) for path in python_files() if not ast.get_docstring(ast.parse(path.read_text()))
    ]

    assert silent == []


@pytest.mark.parametrize("pattern", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_text_is_free_of(pattern):
    expression = re.compile(pattern)
    found = [
        f"{name(path)}:{number}: {line.strip()[:80]}"
        for path in own_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if expression.search(line)
    ]

    assert found == []
