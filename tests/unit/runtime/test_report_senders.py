"""Which messages of a node pass: those of its own reports."""

from __future__ import annotations

import msgspec
import pytest

from domain.action import Action, Kind, Outcome
from domain.codec import encode
from domain.event_base import EventBase
from domain.events import (
    ActionFinished,
    ActionStarted,
    ActionSubmitted,
    EnvironmentRemoved,
    NodeFenced,
    NodeJoined,
    NodeLost,
    NodeRefuses,
    NodeRevoked,
    StatusQueried,
    TimeAdvanced,
)
from domain.ids import ActionId, TrajectoryKey
from domain.inventory import NodeInventory
from scheduler.runtime.loop.report_collector import why_refused

ACTION = ActionId("act_1")


def joined(name: str) -> NodeJoined:
    return NodeJoined(
        node=NodeInventory(name=name, identity="i", incarnation=1, pool="default", resources={})
    )


@pytest.mark.parametrize(
    "report",
    [
        ActionStarted(action_id=ACTION, node="a"),
        ActionFinished(action_id=ACTION, node="a", outcome=Outcome.COMPLETED),
        EnvironmentRemoved(trajectory=TrajectoryKey("default/t"), node="a"),
        NodeRefuses(node="a", incarnation=1, reason=""),
        joined("a"),
    ],
)
def test_reports_pass_from_their_node_alone(report: EventBase) -> None:
    assert why_refused(encode(report), "a") == ""
    assert why_refused(encode(report), "b") == "it is about node 'a'"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (NodeLost(node="a", incarnation=1), "nodes send no NodeLost"),
        (NodeFenced(node="a", incarnation=1), "nodes send no NodeFenced"),
        (NodeRevoked(node="a"), "nodes send no NodeRevoked"),
        (TimeAdvanced(), "nodes send no TimeAdvanced"),
        (StatusQueried(request_id="r", reply_to="c"), "nodes send no StatusQueried"),
        (
            ActionSubmitted(
                action=Action(id=ACTION, project="p", task="t", pool="d", kind=Kind.NOOP)
            ),
            "nodes send no ActionSubmitted",
        ),
        (ActionFinished(action_id=ACTION, node="", outcome=Outcome.COMPLETED), "it names no node"),
    ],
)
def test_what_nodes_do_not_send_is_refused(message: EventBase, why: str) -> None:
    assert why_refused(encode(message), "a") == why


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x93\x01\x02\x03", msgspec.msgpack.encode({"node": 3})]
)
def test_a_message_without_a_node_is_refused(body: bytes) -> None:
    assert why_refused(body, "a") == "it names no node"


def test_a_message_of_a_later_version_passes_if_it_names_its_sender() -> None:
    body = msgspec.msgpack.encode({"event": "NodeDreams", "node": "a", "of": ["sheep"]})
    assert why_refused(body, "a") == ""
    assert why_refused(body, "b") == "it is about node 'a'"
