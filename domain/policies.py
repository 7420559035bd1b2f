"""Names of scheduling policies, as pools are configured with them."""

from __future__ import annotations

import re
from typing import NamedTuple

from domain.errors import InvalidRequest
from domain.resources import MAX_UNITS

#: What stands in a pool's ``policy``; ``k`` is a unit count.
KNOWN_POLICIES = ("paper", "minimum", "fixed(k)", "balanced", "malleable")
#: Of pools that nobody has configured otherwise: in no cell of the sweep worse than the others
#: (`benchmarks.never_worse`).
DEFAULT_POLICY = "malleable"
_PLAIN = frozenset(name for name in KNOWN_POLICIES if "(" not in name)
_FIXED = re.compile(r"fixed\(\s*(\d{1,7})\s*\)")


class PolicyName(NamedTuple):
    """A policy's name, taken apart."""

    name: str
    #: The ``k`` of ``fixed(k)``; 0 for others.
    parallelism: int = 0


def parse_policy(text: str, pointer: str = "/policy") -> PolicyName:
    """Take a policy's name apart; raise InvalidRequest, with the known names, for any other."""
    if text in _PLAIN:
        return PolicyName(text)
    fixed = _FIXED.fullmatch(text)
    if fixed is not None and 0 < int(fixed[1]) <= MAX_UNITS:
        return PolicyName("fixed", int(fixed[1]))
    known = ", ".join(KNOWN_POLICIES)
    raise InvalidRequest(f"{text!r} is no policy; known are {known}", pointer=pointer)
