"""Registry of facades: the built-in ones, and those that installed packages bring.

A package registers a `Facade` under the entry-point group ``tangram.facades``. An entry point that
cannot be loaded, or whose prefix is taken, is logged and left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from facades import openai
from scheduler.runtime.gateway.facade import Facade

GROUP: Final = "tangram.facades"
BUILT_IN: Final = (openai.FACADE,)

log = logging.getLogger(__name__)


def load(found: Iterable[EntryPoint] | None = None) -> tuple[Facade, ...]:
    """Return the built-in facades and those of ``found`` (default: all installed packages)."""
    facades = {facade.prefix: facade for facade in BUILT_IN}
    for entry in sorted(entry_points(group=GROUP) if found is None else found):
        origin = f"{entry.name} = {entry.value}"
        try:
            facade = entry.load()
        except Exception as error:  # any error of a foreign module on import
            log.error("facade %s cannot be loaded: %s: %s", origin, type(error).__name__, error)
            continue
        if not isinstance(facade, Facade):
            log.error("facade %s is a %s, not a Facade", origin, type(facade).__name__)
        elif facades.setdefault(facade.prefix, facade) is not facade:
            log.error("facade %s is left out: prefix %s is taken", origin, facade.prefix)
    return tuple(facades.values())
