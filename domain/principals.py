"""Authenticated callers and their scopes."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Scope(StrEnum):
    """Permission of a token; independent of each other, but ``admin`` includes all."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"
    CONFIG = "config"
    ADMIN = "admin"


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller. ``project`` None: every project (administrators only)."""

    name: str
    project: str | None
    scopes: frozenset[Scope]

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def sees(self, project: str) -> bool:
        return self.project is None or self.project == project
