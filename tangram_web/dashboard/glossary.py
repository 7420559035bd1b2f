"""Glossary: terms with their meanings, for tooltips and for the glossary page.

`docs/glossary.md` is the source. The package contains a copy of it, because a wheel has no
documents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from django.utils.text import slugify

SOURCE: Final = Path(__file__).parent / "templates/dashboard/glossary.md"
_ROW: Final = re.compile(r"\| \*\*(?P<name>[^*]+)\*\*(?P<more>[^|]*)\| (?P<meaning>.+) \|")


@dataclass(frozen=True)
class GlossaryTerm:
    """One word and its meaning, without markup."""

    name: str
    meaning: str
    section: str

    @property
    def anchor(self) -> str:
        """Id of the term on the glossary page."""
        return slugify(self.name)


@cache
def glossary() -> list[GlossaryTerm]:
    """Return all terms in the order of the document."""
    section, found = "", []
    for line in SOURCE.read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif row := _ROW.fullmatch(line):
            meaning = re.sub(r"[*`]", "", row["meaning"])
            found.append(GlossaryTerm(row["name"], meaning, section))
    return found


@cache
def _by_name() -> Mapping[str, GlossaryTerm]:
    return {term.name.lower(): term for term in glossary()}


def term_of(word: str) -> GlossaryTerm | None:
    """Return the term for ``word``: any case, plural, or a policy with its argument as ``fixed(4)``."""
    name = word.partition("(")[0].strip().lower()
    terms = _by_name()
    return terms.get(name) or terms.get(name.removesuffix("s"))
