"""The endpoints of images: one function each, which returns the `ApiCall`."""

from __future__ import annotations

from collections.abc import Sequence

from tangram_client._core import ApiCall, ApiResponse, Content
from tangram_client.models import ImageInfo

#: Longest time that nodes unpack an image.
IMPORT_SECONDS = 1800.0
_PATH = "/api/v1/images"
_TAR = {"Content-Type": "application/x-tar"}


def list_images() -> ApiCall[Sequence[ImageInfo]]:
    """Read the images of all nodes."""
    return ApiCall("GET", _PATH, _infos)


def import_image(name: str, archive: Content, nodes: Sequence[str]) -> ApiCall[ImageInfo]:
    """Store an image on nodes; none named: on all."""
    params = _params(name, nodes)
    return ApiCall("PUT", _PATH, _info, params, _TAR, archive, wait_seconds=IMPORT_SECONDS)


def import_stored(name: str, sha256: str, nodes: Sequence[str]) -> ApiCall[ImageInfo]:
    """Have nodes pull an image whose archive is in the object store."""
    params = {**_params(name, nodes), "stored": sha256}
    return ApiCall("PUT", _PATH, _info, params, wait_seconds=IMPORT_SECONDS)


def copy_image(name: str, source: str, nodes: Sequence[str]) -> ApiCall[ImageInfo]:
    """Have nodes pull an image that the node ``source`` has."""
    params = {**_params(name, nodes), "from": source}
    return ApiCall("PUT", _PATH, _info, params, wait_seconds=IMPORT_SECONDS)


def remove_image(name: str, nodes: Sequence[str]) -> ApiCall[ImageInfo]:
    """Delete a name from nodes; none named: from all."""
    return ApiCall("DELETE", _PATH, _info, _params(name, nodes))


def _params(name: str, nodes: Sequence[str]) -> dict[str, str]:
    return {"name": name, **({"nodes": ",".join(nodes)} if nodes else {})}


def _info(response: ApiResponse) -> ImageInfo:
    return ImageInfo.of(response.json())


def _infos(response: ApiResponse) -> Sequence[ImageInfo]:
    return [ImageInfo.of(each) for each in response.json()["images"]]
