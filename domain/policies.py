"""Names of scheduling policies in the configuration of pools.

The policies register themselves (`scheduler.core.policies.registry`), which this package must not
import; it validates names against the forms that the registry provides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from domain.errors import InvalidRequest
from domain.resources import MAX_UNITS

#: Default of pools: no worse than the others in any cell of the sweep (`benchmarks.never_worse`).
DEFAULT_POLICY: Final = "malleable"
MOST_PERCENT: Final = 100
_SYNTAX: Final = re.compile(r"([a-z][a-z0-9_-]*)(?:\(\s*(\d{1,7})\s*\))?")
_source: Callable[[], tuple[str, ...]] = tuple


class PolicyName(NamedTuple):
    """A parsed name: ``fixed(4)`` has the form ``fixed(k)`` and the parameter 4.

    ``k`` stands for a unit count, ``p`` for a percentage (``makespan(p)``). A variant is a form of its own,
    without a parameter: ``paper(free restores)``.
    """

    form: str
    parameter: int | None = None


def use_known_policies(source: Callable[[], tuple[str, ...]]) -> None:
    """Set the function that returns the known forms: ``name``, ``name(k)``, ``name(p)``."""
    global _source
    _source = source


def known_policies() -> tuple[str, ...]:
    """Return the forms of all policies; ``k`` is a unit count, ``p`` a percentage, other words in brackets a variant."""
    return _source()


def parse_policy(text: str, pointer: str = "/policy") -> PolicyName:
    """Parse a policy's name; raise InvalidRequest, with the known names, for an unknown one."""
    known = known_policies()
    if text in known and not text.endswith(("(k)", "(p)")):
        return PolicyName(text)
    if (found := _SYNTAX.fullmatch(text)) is not None:
        name, count = found.groups()
        if count is not None and 0 < int(count) <= MAX_UNITS and f"{name}(k)" in known:
            return PolicyName(f"{name}(k)", int(count))
        if count is not None and int(count) <= MOST_PERCENT and f"{name}(p)" in known:
            return PolicyName(f"{name}(p)", int(count))
    raise InvalidRequest(f"{text!r} is no policy; known are {', '.join(known)}", pointer=pointer)
