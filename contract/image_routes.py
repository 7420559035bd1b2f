"""Routes of images: root file systems that nodes without a container engine store."""

from __future__ import annotations

import msgspec

from contract.route import API_PREFIX, TEXT, Binary, Parameter, Route
from domain.ports.images import WarmFacts
from domain.principals import Scope


class ImageDescription(msgspec.Struct):
    """A name, the image that it names, and the nodes where it does."""

    name: str
    digest: str
    size_bytes: int
    files: int
    #: Environments that are upon it, on all these nodes.
    environments: int
    #: When an environment began with it last, as UTC RFC 3339.
    used_at: str
    nodes: list[str]
    #: Prepared environments on all these nodes.
    warm: WarmFacts = WarmFacts()
    #: Whether its archive is in the object store, where nodes that lack the name pull it.
    stored: bool = False


class ImageList(msgspec.Struct):
    """The images of all nodes, by name; a name may have another digest elsewhere."""

    images: list[ImageDescription]
    #: Node → why it did not answer.
    unreachable: dict[str, str] = {}


class ImageChange(msgspec.Struct):
    """What was done with a name on each node."""

    name: str
    #: Digest of what was imported; empty after a removal.
    digest: str
    nodes: list[str]
    #: Node → why it did nothing.
    failed: dict[str, str] = {}


NAME = Parameter("name", "As `environment.image` names it: `swe:1`.", TEXT)
NODES = Parameter("nodes", "Names of nodes, separated by commas; default all that answer.", TEXT)
ARCHIVE = Binary(
    "application/x-tar",
    "A tar of a root file system, what `docker save` writes, or an OCI layout; each may be compressed.",
)
STORED = Parameter(
    "stored",
    "SHA-256 of an archive that was stored at a URL of `POST /uploads` with the kind `image`; the body is empty then.",
    {"type": "string", "pattern": "^[0-9a-f]{64}$"},
)
FROM = Parameter(
    "from",
    "Name of a node that has the image: it puts it into the object store, and the others pull it; the body is empty then.",
    TEXT,
)

IMAGES = (
    Route(
        method="GET",
        path=f"{API_PREFIX}/images",
        operation="images_list",
        summary="Images of nodes, with size, use and nodes",
        scope=Scope.READ,
        responses={200: ImageList},
        errors=(503,),
    ),
    Route(
        method="PUT",
        path=f"{API_PREFIX}/images",
        operation="images_import",
        summary="Store an image under a name on nodes, and without `nodes` on those that join later, where there is an object store;"
        " a token of all projects is needed",
        scope=Scope.OPERATE,
        body=ARCHIVE,
        body_required=False,
        parameters=(NAME, NODES, STORED, FROM),
        responses={201: ImageChange},
        errors=(403, 404, 409, 413, 422, 503, 507),
    ),
    Route(
        method="DELETE",
        path=f"{API_PREFIX}/images",
        operation="images_remove",
        summary="Delete a name, and its image with the last one; refused while environments are upon it",
        scope=Scope.OPERATE,
        parameters=(NAME, NODES),
        responses={200: ImageChange},
        errors=(403, 404, 409, 422, 503),
    ),
)
