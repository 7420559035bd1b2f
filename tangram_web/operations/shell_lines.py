"""Shell lines that apply one object of the configuration with some members changed."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import msgspec

from tangram_web.operations.verb import Target, Values
from tangram_web.pools import manifests
from tangram_web.pools.selectors import current_config

Line = Callable[[Target, Values], str]


def applied(kind: str, changed: Callable[[Target, Values], dict[str, Any]]) -> Line:
    """Return a function that builds the line; members that ``changed`` omits keep their values."""

    def line(target: Target, values: Values) -> str:
        text = document_of(kind, target.name, changed(target, values))
        return f"echo {shlex.quote(text)} | tangram apply -"

    return line


def document_of(kind: str, name: str, changed: dict[str, Any]) -> str:
    """Return the document of one object with some members changed, as JSON."""
    spec = manifests.specs_of(current_config()).get((kind, name))
    members = {} if spec is None else manifests.spec_as_data(spec)
    document = {"apiVersion": manifests.API_VERSION, "kind": kind,
                "metadata": {"name": name}, "spec": {**members, **changed}}  # fmt: skip
    return msgspec.json.encode(document).decode()


def given(*members: str) -> Callable[[Target, Values], dict[str, Any]]:
    """Return the members of the form that have a value."""
    return lambda _, values: {name: values[name] for name in members if name in values}


def fixed(**members: Any) -> Callable[[Target, Values], dict[str, Any]]:
    """Return members with fixed values."""
    return lambda _target, _values: members
