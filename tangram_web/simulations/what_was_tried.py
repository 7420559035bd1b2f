"""What a simulation tried, in words: the changes of its configuration, its window, and the verbs that apply them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

from django.urls import reverse

from domain.policies import DEFAULT_POLICY
from tangram_web.dashboard.templatetags.console import duration

#: Kind and member → its words, with the name of the object.
_WORDS: Final = {
    ("Pool", "policy"): "policy of pool {}",
    ("Pool", "shares"): "shares of pool {}",
    ("Pool", "paused"): "pause of pool {}",
    ("Resource", "limit_units"): "limit of {}",
    ("Resource", "quotas"): "quotas of {}",
    ("Resource", "shares"): "shares of {}",
    ("Node", ""): "node {}",
}
#: Kind and member → the verb that sets it, and the field of its form.
_VERBS: Final = {
    ("Pool", "policy"): ("pool", "policy", "policy"),
    ("Resource", "limit_units"): ("resource", "limit", "limit_units"),
}


@dataclass(frozen=True)
class TriedChange:
    """One change: "limit of api:serper", "20", "5", and where it can be applied."""

    what: str
    before: str
    after: str
    played: bool
    #: Text and address of the verb, or of the editor.
    apply: str
    address: str


def changes_of(request: Mapping[str, Any]) -> list[TriedChange]:
    """Return the changes of a what-if; none of another simulation, or of one of an earlier version."""
    return [_change(each) for each in request.get("changed", ())]


def run_names(request: Mapping[str, Any]) -> list[str]:
    """Return the names of the first two runs for people: of one changed policy, both policies."""
    changed = request.get("changed", ())
    if not changed:
        return list(request["policies"][:2])
    if len(changed) == 1 and changed[0].get("member") == "policy":
        return [changed[0].get("before") or DEFAULT_POLICY, changed[0]["after"]]
    return ["as it is", "with the change"]


def _change(each: Mapping[str, Any]) -> TriedChange:
    kind, name, member = each["kind"], each["name"], each.get("member", "")
    words = _WORDS.get((kind, member), f"{member.replace('_', ' ')} of {kind} {{}}".strip())
    before, after = each.get("before", ""), each.get("after", "")
    if kind == "Node":
        after = "drained" if after and after != "false" else "in service"
        before = "in service" if after == "drained" else "drained"
        apply, address = _verb("node", "drain" if after == "drained" else "resume", name, {})
    elif (kind, member) in _VERBS:
        of, verb, field = _VERBS[kind, member]
        apply, address = _verb(of, verb, name, {field: after})
    else:
        query = urlencode({"kind": kind, "name": name})
        apply, address = "Edit the configuration…", f"{reverse('configuration:edit')}?{query}"
    return TriedChange(
        words.format(name),
        before or "none",
        after or "none",
        each.get("played", True),
        apply,
        address,
    )


def _verb(kind: str, name: str, target: str, given: Mapping[str, str]) -> tuple[str, str]:
    query = urlencode({"target": target, **given})
    return "Apply this change…", f"{reverse('operations:verb', args=[kind, name])}?{query}"


def window_of(request: Mapping[str, Any]) -> str:
    """Return the window as text, in UTC; empty where it is not known."""
    ends, seconds = request.get("window_ends"), request.get("window_seconds")
    if not ends or not seconds:
        return ""
    first, last = (datetime.fromtimestamp(at, UTC) for at in (ends - seconds, ends))
    return f"{first:%-d %b %Y %H:%M:%S} to {last:%H:%M:%S} UTC"


def trust_of(measured: float | None, simulated: float | None) -> str:
    """Say how well a simulation repeats what was measured: mean ACT of the same actions."""
    if not measured or simulated is None:
        return "unknown: nothing of it had ended"
    off = 100 * (simulated - measured) / measured
    if abs(off) < 0.5:
        said = "the simulation of it as it is repeats what was measured"
    else:
        said = f"the simulation of it as it is is {abs(off):.0f} % {'above' if off > 0 else 'below'} what was measured"
    return f"{said} ({duration(simulated)} against {duration(measured)})"
