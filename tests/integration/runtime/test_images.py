"""Images over HTTP: an upload reaches every node at once, and each node refuses by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from domain.errors import Unavailable
from domain.ports.images import ImageOnNode
from domain.principals import Principal, Scope
from managers.cpu.tree.image_arrivals import ImageArrivals
from managers.cpu.tree.image_library import ImageLibrary
from managers.cpu.tree.images import ImageFacts, ImageMissing, ImageStore
from scheduler.runtime.gateway.endpoints.images import Copies
from scheduler.runtime.node.door.images import ImageHandlers
from scheduler.runtime.node.image_fetcher import ImageFetcher
from scheduler.runtime.object_store.folder_objects import FolderObjects
from scheduler.runtime.object_store.objects import IMAGES, ObjectStore
from scheduler.runtime.redis.clients import connect_async
from tests.integration.runtime.rig import TOKENS, Rig
from tests.small_image import docker_tar, root_tar


@pytest.fixture
def rig(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A node with a store of images, and a token of all projects."""
    monkeypatch.setitem(TOKENS, "admin", Principal("admin", None, frozenset({Scope.ADMIN})))
    with_images(rig, tmp_path, None)
    return rig


def with_images(rig: Rig, folder: Path, objects: ObjectStore | None) -> ImageLibrary:
    store = ImageStore(folder)
    store.open()
    library = ImageLibrary(folder, store)
    handlers = ImageHandlers(library, objects)
    routes = rig.routes._routes
    for method, path, handler in (
        ("GET", "/images", handlers.show),
        ("PUT", "/images", handlers.store),
        ("DELETE", "/images", handlers.remove),
        ("POST", "/images/objects", handlers.keep),
    ):
        rig.routes.add(method, path, handler)
        routes.insert(0, routes.pop())  # before that of a node without a store
    return library


async def test_an_image_is_imported_listed_and_removed(rig: Rig):
    async with rig.client("admin") as client:
        stored = await client.put("/images?name=swe:1", content=root_tar())
        assert stored.status_code == 201, stored.text
        digest = stored.json()["digest"]
        assert stored.json()["nodes"] == ["n1"]
        [listed] = (await client.get("/images")).json()["images"]
        assert (listed["name"], listed["digest"], listed["nodes"]) == ("swe:1", digest, ["n1"])
        assert listed["environments"] == 0
        assert listed["size_bytes"] > 1_000_000
        assert (await client.delete("/images?name=swe:1")).json()["nodes"] == ["n1"]
        assert (await client.delete("/images?name=swe:1")).status_code == 404
        assert (await client.get("/images")).json()["images"] == []


@pytest.mark.parametrize(
    ("query", "content", "status", "says"),
    [
        ("name=x", b"no archive", 422, "the archive is no image"),
        ("name=a%20b", b"", 422, "is no name of an image"),
        ("nodes=n1", b"", 422, "?name=swe:1"),
        ("name=x&nodes=n1,n9", b"", 422, "there is no node n9"),
    ],
)
async def test_a_bad_import_names_what_is_wrong(
    rig: Rig, query: str, content: bytes, status: int, says: str
):
    async with rig.client("admin") as client:
        response = await client.put(f"/images?{query}", content=content)
    assert response.status_code == status
    assert says in response.json()["detail"]


async def test_images_are_changed_with_a_token_of_all_projects_only(rig: Rig):
    for token, code in (("operator", "all_projects"), ("trainer", "missing_scope")):
        async with rig.client(token) as client:
            response = await client.put("/images?name=x", content=b"")
            assert (response.status_code, response.json()["code"]) == (403, code)
            assert (await client.delete("/images?name=x")).status_code == 403
            assert (await client.get("/images")).status_code == 200


async def pulled(rig: Rig, objects: ObjectStore, folder: Path, name: str = "swe:1") -> ImageFacts:
    """Return an image as a node that has joined later pulls it."""
    store = ImageStore(folder)
    store.open()
    arrivals = ImageArrivals(store)
    client = connect_async(rig.node_url)
    arrivals.fetch = ImageFetcher(client, rig.keys, objects).fetch
    try:
        await arrivals.ensure(name)
    finally:
        await client.aclose()
    return store.find(name)


async def stored(objects: ObjectStore) -> list[str]:
    return [each.key async for each in objects.list(IMAGES)]


async def test_a_node_that_joins_later_pulls_an_image_that_was_imported_for_all(
    rig: Rig, tmp_path: Path
):
    objects = rig.web_objects = FolderObjects(tmp_path / "objects")
    with_images(rig, tmp_path / "n1", objects)
    async with rig.client("admin") as client:
        first = (await client.put("/images?name=swe:1", content=docker_tar(root_tar()))).json()
        later = await pulled(rig, objects, tmp_path / "n2")
        assert (later.digest, later.env["OF_IMAGE"]) == (first["digest"], "yes")

        another = (await client.put("/images?name=swe:1", content=root_tar())).json()
        assert another["digest"] != first["digest"]
        assert (await pulled(rig, objects, tmp_path / "n3")).digest == another["digest"]

        await client.put("/images?name=own:1&nodes=n1", content=root_tar())
        with pytest.raises(ImageMissing):  # for this node alone
            await pulled(rig, objects, tmp_path / "n3", "own:1")
        copied = await client.put("/images?name=own:1&from=n1")
        assert copied.json()["digest"] == another["digest"]
        await pulled(rig, objects, tmp_path / "n3", "own:1")
        assert len(await stored(objects)) == 2  # equal images are one object

        await client.delete("/images?name=swe:1&nodes=n1")
        listed = (await client.get("/images")).json()["images"]
        own = {"name": "own:1", "nodes": ["n1"], "stored": True}
        gone = {"name": "swe:1", "nodes": [], "stored": True}
        assert [{name: each[name] for name in own} for each in listed] == [own, gone]
        assert (await client.delete("/images?name=swe:1")).status_code == 200
        with pytest.raises(ImageMissing):
            await pulled(rig, objects, tmp_path / "n4")
        unknown = await client.put("/images?name=swe:1&from=n7")
        missing = await client.put("/images?name=a&from=n1")
    assert (unknown.status_code, unknown.json()["errors"][0]["pointer"]) == (422, "?from")
    assert missing.status_code == 404


async def test_without_an_object_store_later_nodes_lack_an_image(rig: Rig, tmp_path: Path):
    async with rig.client("admin") as client:
        assert (await client.put("/images?name=swe:1", content=root_tar())).status_code == 201
        refused = await client.put("/images?name=swe:1&from=n1")
        asked = await client.put(f"/images?name=swe:1&stored={'0' * 64}")
    assert (refused.status_code, refused.json()["code"]) == (409, "no_object_store")
    assert (asked.status_code, asked.json()["code"]) == (409, "no_object_store")


async def test_a_reader_that_leaves_does_not_hold_the_others_up():
    pieces = [bytes([number]) for number in range(100)]

    async def source() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    copies = Copies(2)
    reading = asyncio.ensure_future(copies.read(source()))
    stopped = copies.readers[0]()
    assert await anext(stopped) == pieces[0]
    copies.leave(0)
    assert [piece async for piece in copies.readers[1]()] == pieces
    await reading


async def test_an_upload_that_breaks_off_is_no_archive_on_any_node():
    async def source() -> AsyncIterator[bytes]:
        yield b"half"
        raise ConnectionError("the client left")

    copies = Copies(1)
    reading = asyncio.ensure_future(copies.read(source()))
    with pytest.raises(Unavailable, match="the client left"):
        [piece async for piece in copies.readers[0]()]
    with pytest.raises(ConnectionError):
        await reading


def test_what_a_node_lists_is_read_back():
    image = ImageOnNode("a", "d", 1, 2, 3, 4.5)
    assert msgspec.json.decode(msgspec.json.encode(image), type=ImageOnNode) == image
