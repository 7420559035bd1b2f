"""What queues wait for in the end: the action that holds most of the units that a head is short of. Pure.

The scheduler names the waiting action that came before a head. Where that one is short of numbered units of a node, the
action that holds at least half of what is held there is the cause, and all queues of the chain wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tangram_web.problems.facts import QueueFact

#: Reason of a head that is short of units.
SHORT: Final = "short_of"
#: Part of the held units of a node that one action has at least.
LEAST_PART: Final = 0.5


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What one action holds of a kind of units on a node."""

    action: str
    node: str
    kind: str
    amount: float
    #: Wall clock of its grant.
    since: float


def holdings_of(nodes: Iterable[Mapping[str, Any]]) -> dict[str, Holding]:
    """Return resource of a node, as in ``cpu:n1`` → the action that holds most of it, if that is enough.

    ``nodes``: rows of the live topic of holders.
    """
    found: dict[str, Holding] = {}
    for node in nodes:
        held = {f"{kind}:{node['name']}": amount for kind, amount in node["held"].items()}
        for each in node["holders"]:
            if each["shared"]:
                continue
            resource = f"{each['kind']}:{node['name']}"
            if resource not in found or each["amount"] > found[resource].amount:
                found[resource] = Holding(
                    action=each["id"], node=node["name"], kind=each["kind"],
                    amount=each["amount"], since=each["since"],
                )  # fmt: skip
        for resource, amount in held.items():
            if resource in found and found[resource].amount < LEAST_PART * amount:
                del found[resource]
    return found


def with_causes(
    queues: Sequence[QueueFact], holdings: Mapping[str, Holding], now: float
) -> list[QueueFact]:
    """Return the queues, each with the action that it waits for in the end."""
    by_head = {queue.head: queue for queue in queues if queue.head}
    return [_with_cause(queue, by_head, holdings, now) for queue in queues]


def _with_cause(
    queue: QueueFact, by_head: Mapping[str, QueueFact], holdings: Mapping[str, Holding], now: float
) -> QueueFact:
    last, seen = queue, {queue.head}
    while (before := by_head.get(last.blocked_by)) is not None and before.head not in seen:
        seen.add(before.head)
        last = before
    holding = holdings.get(last.resource) if last.code == SHORT and not last.blocked_by else None
    if holding is None:
        return queue
    unit = "cores" if holding.kind == "cpu" else f"{holding.kind.upper()}s"
    held = f"{holding.amount:g} {unit[:-1] if holding.amount == 1 else unit} of node {holding.node}"
    return msgspec.structs.replace(
        queue, blocked_by=holding.action, held=held, held_seconds=max(0.0, now - holding.since)
    )
