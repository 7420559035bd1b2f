"""What the keeper of node groups launched and found, as it stores it in Redis."""

from __future__ import annotations

from typing import Final, cast

import msgspec
import redis

from contract.node_group_reports import NodeGroupReport
from domain.errors import Unavailable
from tangram_web.lib import bus
from tangram_web.pools.visibility import Projects, visible_struct

_reports: Final = msgspec.json.Decoder(NodeGroupReport)


def node_group_reports(projects: Projects = None) -> dict[str, NodeGroupReport]:
    """Return the report of each group by name, as ``projects`` see it. Raises Unavailable without Redis."""
    try:
        stored = bus.redis_client().hgetall(bus.keys().node_group_reports)
    except redis.RedisError as error:
        raise Unavailable(f"redis does not answer: {error}") from error
    found: dict[str, NodeGroupReport] = {}
    for name, text in sorted(cast("dict[bytes, bytes]", stored).items()):
        try:
            report = _reports.decode(text)
        except msgspec.DecodeError:  # of a keeper of another version
            continue
        found[name.decode()] = report if projects is None else _visible(report, projects)
    return found


def _visible(report: NodeGroupReport, projects: Projects) -> NodeGroupReport:
    """Return a report without what says how machines are reached."""
    return NodeGroupReport(
        visible_struct(report.spec, projects), report.at, report.wanted, report.ready
    )
