"""Folders of tokenizers that an operator allows, and the tokenizers that were read from them.

Lifetimes: one for a process. A tokenizer is read when it is first named, and stays; a folder whose ``tokenizer.json`` changed
since is read again, for rollouts that begin after.

Rules
1. A trainer names a tokenizer as model hubs do, ``organisation/model``, or by the path of a folder. Either must be below one of
   the allowed folders, links followed: a name reads no other file of the machine.
2. An error says that a name is not there and which names are, never what is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from domain.errors import NotFound
from rollout.tokens.tokenizer import ModelTokenizer, load_tokenizer

_FILE: Final = "tokenizer.json"
#: Names that an error lists.
_SHOWN: Final = 10


class TokenizerFolders:
    """Tokenizers by name."""

    def __init__(self, allowed: Iterable[Path]) -> None:
        self._allowed = [folder.resolve() for folder in allowed]
        self._read: dict[Path, tuple[int, ModelTokenizer]] = {}

    def get(self, name: str) -> ModelTokenizer:
        """Return a tokenizer. Raises NotFound, and InvalidRequest for one that cannot be read."""
        folder = self._folder(name)
        changed = (folder / _FILE).stat().st_mtime_ns
        known = self._read.get(folder)
        if known is None or known[0] != changed:
            known = self._read[folder] = (changed, load_tokenizer(folder))
        return known[1]

    def names(self) -> list[str]:
        """Return the names of all tokenizers, sorted."""
        return sorted(set(self._names()))

    def _names(self) -> Iterator[str]:
        for allowed in self._allowed:
            for pattern in (f"*/{_FILE}", f"*/*/{_FILE}"):
                for folder in (file.parent for file in allowed.glob(pattern)):
                    if folder.resolve().is_relative_to(allowed):
                        yield str(folder.relative_to(allowed))

    def _folder(self, name: str) -> Path:
        for allowed in self._allowed if name and "\0" not in name else ():
            folder = (allowed / name).resolve()
            if folder.is_relative_to(allowed) and (folder / _FILE).is_file():
                return folder
        listed = self.names()
        there = ", ".join(listed[:_SHOWN]) or "none"
        more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
        raise NotFound(f"there is no tokenizer {name!r} here; there are {there}{more}")
