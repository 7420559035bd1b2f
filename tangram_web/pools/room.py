"""Whether the nodes that are there can hold what is declared."""

from __future__ import annotations

import msgspec

from domain.errors import InvalidRequest
from domain.host_memory import why_no_room
from domain.inventory import Config, ResourceInventory
from tangram_web.records.models import NodeRecord, NodeState


def check_host_memory(config: Config, changed: set[str]) -> None:
    """Raise InvalidRequest when the host memory of nodes cannot hold the ``changed`` GPU services.

    The message names service, node and cure. Nodes that are lost do not count.
    """
    if not changed & config.services.keys():
        return
    rows = NodeRecord.objects.exclude(state=NodeState.LOST)
    nodes = {
        row.name: msgspec.convert(row.resources["gpu"], ResourceInventory)
        for row in rows
        if "gpu" in row.resources
    }
    if why := why_no_room(changed, config.services, nodes):
        raise InvalidRequest(why, pointer="/spec/host_memory_bytes")
