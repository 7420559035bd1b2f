"""Images of the nodes: which names of a client are images that an environment may begin with."""

from __future__ import annotations

from typing import Final

import msgspec

from contract.image_routes import ImageList
from contract.status import SystemStatus
from scheduler.runtime.gateway.native_calls import NativeCalls

#: Nodes of this isolation begin environments with the images that they list, and no others.
_LISTED: Final = "bwrap"


async def image_of(native: NativeCalls, image: str) -> str | None:
    """Return the name of an image that environments may begin with: a node lists it, or takes any."""
    listed = await native.call("images_list")
    names = {each.name for each in msgspec.json.decode(listed.content, type=ImageList).images}
    for name in (image, f"{image}:latest"):
        if name in names:
            return name
    status = await native.call("status_retrieve")
    nodes = msgspec.json.decode(status.content, type=SystemStatus).nodes
    return image if any(node.isolation != _LISTED for node in nodes) else None
