"""Registry of handlers: name → where the class is. Built-in ones, and those of the entry-point group ``tangram.rollouts``.

Rules
1. Nothing is imported here: a handler process imports a handler with the first rollout that names it, so one that
   cannot be imported fails its own rollouts alone.
2. A name that a built-in handler has, or an earlier package by name, stays with it; the other is logged and left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from rollout.handlers.base import AgentHandler

GROUP: Final = "tangram.rollouts"
#: Name → ``module:class``.
BUILT_IN: Final[Mapping[str, str]] = {
    "code": "rollout.handlers.code:CodeHandler",
    "math": "rollout.handlers.math:MathHandler",
    "noop": "rollout.handlers.noop:NoopHandler",
    "stem": "rollout.handlers.stem:StemHandler",
    "swe": "rollout.handlers.swe:SweHandler",
    "foreign": "rollout.handlers.foreign:ForeignHandler",
}

log = logging.getLogger(__name__)


class NoHandler(Exception):
    """The name of a handler leads to none."""


def handlers(found: Iterable[EntryPoint] | None = None) -> dict[str, str]:
    """Return the place of each handler, as ``module:class``, of ``found`` (default: all installed packages)."""
    places = dict(BUILT_IN)
    points = entry_points(group=GROUP) if found is None else found
    for point in sorted(points, key=lambda each: (each.name, each.value)):
        if places.setdefault(point.name, point.value) != point.value:
            log.error(
                "handler %s = %s is left out: the name is taken by %s; uninstall one of them",
                point.name, point.value, places[point.name],
            )  # fmt: skip
    return places


def load(place: str) -> AgentHandler:
    """Import and make the handler at ``module:class``. Raises NoHandler."""
    module, _, path = place.partition(":")
    try:
        found: object = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
        handler = found() if isinstance(found, type) else found
    except Exception as error:  # any error of a foreign module on import
        raise NoHandler(f"{place} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(handler, AgentHandler):
        raise NoHandler(f"{place} is a {type(handler).__name__}, not an AgentHandler")
    return handler
