"""With an object store, large files pass no web process, and a snapshot has a copy beyond its node."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domain.principals import Principal, Scope
from managers.cpu.fake import Play
from scheduler.runtime.body_store import BodyStore
from scheduler.runtime.gateway import relaying
from scheduler.runtime.gateway.endpoints import files
from scheduler.runtime.node.door.objects import SMALL_ARCHIVE_BYTES
from scheduler.runtime.object_store.objects import FILES, SNAPSHOTS
from scheduler.runtime.object_store.s3_objects import S3Objects
from scheduler.runtime.object_store.store_address import parse_bucket
from tangram_client import AsyncClient, Conflict, NotFound, _object_calls
from tangram_client._async_objects import upload_object
from tangram_client._calls import get_action
from tangram_client._core import ApiCall
from tangram_client._image_calls import import_stored
from tangram_client._object_calls import result_url, upload_url
from tests.conformance.object_store import BUCKET, s3_server
from tests.integration.runtime.rig import TOKENS, Rig
from tests.integration.runtime.test_forks import prepared
from tests.integration.runtime.test_images import pulled, with_images
from tests.small_image import docker_tar, root_tar

LARGE = os.urandom(1024) * (_object_calls.DIRECT_BYTES // 1024) + b"end"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def store(s3: str, monkeypatch: pytest.MonkeyPatch) -> S3Objects:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    return S3Objects(parse_bucket(f"s3://{BUCKET}?endpoint={s3}"))


@pytest.fixture
def through_web(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directions of contents that passed the web process."""
    passed: list[str] = []
    upload, relay = files._upload, relaying.relay

    async def uploaded(request: Any) -> Any:
        if int(request.header(b"content-length") or "1"):
            passed.append("up")
        return await upload(request)

    async def relayed(*args: Any) -> None:
        passed.append("down")
        await relay(*args)

    monkeypatch.setattr(files, "_upload", uploaded)
    monkeypatch.setattr(files, "relay", relayed)
    return passed


async def listed(store: S3Objects, area: str) -> list[str]:
    return [each.key async for each in store.list(area)]


async def restarted(rig: Rig, store: S3Objects) -> None:
    rig.web_objects = rig.node_objects = store
    await rig.stop_node()
    await rig.start_node()


async def test_large_files_and_snapshots_are_in_the_store(
    rig: Rig, store: S3Objects, tmp_path: Path, through_web: list[str]
) -> None:
    local, back = tmp_path / "large", tmp_path / "back"
    local.write_bytes(LARGE)
    await restarted(rig, store)
    async with rig.served() as client, client.trajectory("t1", task="t") as trajectory:
        await trajectory.files.upload(local, "large")
        written = await trajectory.files.stat("large")
        await trajectory.files.download("large", back)
        assert through_web == []
        with pytest.raises(NotFound):
            await trajectory.files.download("missing", back)
        assert client not in _object_calls.WITHOUT_STORE  # that was about one path

        through_web.clear()
        local.write_bytes(b"small")
        await trajectory.files.upload(local, "small")
        await trajectory.files.download("small", tmp_path / "small")
        assert through_web == ["up", "down"]

    assert written.size_bytes == len(LARGE)
    assert back.read_bytes() == LARGE
    assert [key.split("/")[:2] for key in await listed(store, FILES)] == [[FILES, "default"]]

    async with rig.client() as http:
        await prepared(http)
        taken = await http.post("/trajectories/trj-1/snapshots", json={"name": "kept"})
        assert taken.status_code == 201, taken.text
        assert rig.worker is not None
        await rig.worker._forks.copies.settled()
        assert len(await listed(store, SNAPSHOTS)) == 1
        unknown = await http.put(f"/trajectories/trj-1/files?path=a&stored={'0' * 64}")
        wrong = await http.put("/trajectories/trj-1/files?path=a&stored=../a")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "no_object")
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/sha256")


def a_tree(folder: Path, *, large: bool) -> Path:
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "data").write_bytes(LARGE if large else b"small")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return folder


def shown(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes()) for path in files
    }


async def test_large_trees_pass_the_store(
    rig: Rig, store: S3Objects, tmp_path: Path, through_web: list[str]
) -> None:
    large, small = a_tree(tmp_path / "large", large=True), a_tree(tmp_path / "small", large=False)
    await restarted(rig, store)
    async with rig.served() as client, client.trajectory("t1", task="t") as trajectory:
        await trajectory.files.upload_tree(large, "large")
        await trajectory.files.download_tree("large", tmp_path / "large back")
        assert through_web == []
        await trajectory.files.upload_tree(small, "small")
        await trajectory.files.download_tree("small", tmp_path / "small back")
        assert through_web == ["up"]  # the archive was the answer
        (small / "more").write_bytes(LARGE[: SMALL_ARCHIVE_BYTES + 1])
        await trajectory.files.upload_tree(small, "small")
        await trajectory.files.download_tree("small", tmp_path / "small back")
        assert through_web == ["up", "up", "down"]
        assert client not in _object_calls.WITHOUT_STORE

    assert shown(tmp_path / "large back") == shown(large)
    assert shown(tmp_path / "small back") == shown(small)


TEXT = "0123456789abcdef" * (_object_calls.DIRECT_RESULT_BYTES // 16 + 1)
COMMAND = {"command": ["x"], "output": {"limit_bytes": len(TEXT)}}
ACTION = {"task": "t", "kind": "exec", "cost": {"cpu": 1}, "exec": COMMAND}


async def printing(rig: Rig, store: S3Objects | None, text: str) -> None:
    rig.bodies_folder = rig.directory / "bodies"
    rig.driver.script = lambda _: Play(stdout=text)
    rig.web_objects = rig.node_objects = store
    await rig.stop_node()
    await rig.start_node()


@pytest.fixture
def filled_in(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of stored results that the web process read."""
    read: list[int] = []
    get = BodyStore.get

    async def getting(self: BodyStore, stored: Any) -> bytes:
        read.append(stored.bytes)
        return await get(self, stored)

    monkeypatch.setattr(BodyStore, "get", getting)
    return read


async def test_large_results_pass_the_store(
    rig: Rig, store: S3Objects, filled_in: list[int]
) -> None:
    await printing(rig, store, TEXT)
    before = await listed(store, FILES)
    async with rig.served() as client:
        run = await client.run(ACTION)
        waited = await client.wait(run.id)
        submitted = await client.submit(ACTION, wait_seconds=60)
        assert filled_in == []
        assert [each.stdout for each in (run, waited, submitted)] == [TEXT] * 3
        assert (run.truncated, run.exit_code) == (False, 0)
        assert "stored_body" not in run.body["result"]
        assert len(await listed(store, FILES)) == len(before) + 1  # equal results are one object

        plain = await client.send(get_action(run.id))
        preferring = replace(get_action(run.id), headers={"Prefer": "largest-result=1000"})
        short = await client.send(preferring)
        with pytest.raises(Conflict, match="read it directly") as small:
            await client.send(replace(result_url(run.id), params={"least_bytes": "99999999"}))
        async with AsyncClient(client.url, "stranger") as stranger:
            with pytest.raises(NotFound):
                await stranger.send(result_url(run.id))
    assert plain.stdout == TEXT  # other clients get what they got
    assert len(short.stdout) < 5000
    assert short.result["stored_body"]["bytes"] > len(TEXT)
    assert small.value.problem.code == "small_file"


async def test_results_that_cannot_pass_the_store_pass_the_web_process(
    rig: Rig, store: S3Objects, filled_in: list[int]
) -> None:
    """Without a store, with a small result, and with a store that does not answer its client."""
    await printing(rig, None, TEXT)
    async with rig.served() as client:
        assert (await client.run(ACTION)).stdout == TEXT
        assert client not in _object_calls.WITHOUT_STORE  # nothing was asked
    rig.web_objects = store
    async with rig.served() as client:
        assert (await client.run(ACTION)).stdout == TEXT
        assert client in _object_calls.WITHOUT_STORE  # its node has none
        assert (await client.run(ACTION)).stdout == TEXT
    assert len(filled_in) == 3
    await printing(rig, store, TEXT[:100_000])
    async with rig.served() as client:
        assert (await client.run(ACTION)).stdout == TEXT[:100_000]
        assert client not in _object_calls.WITHOUT_STORE
    assert len(filled_in) == 4


async def test_an_image_goes_from_the_client_to_the_store_and_from_there_to_nodes(
    rig: Rig, store: S3Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOKENS, "admin", Principal("admin", None, frozenset({Scope.ADMIN})))
    library = with_images(rig, tmp_path / "n1", store)
    ours = docker_tar(root_tar(("large", tarfile.REGTYPE, 0o644, 0, LARGE)))
    rig.web_objects = store
    async with rig.served("admin") as client:
        used = await upload_object(
            client,
            io.BytesIO(ours),
            {},
            lambda sha256: import_stored("swe:1", sha256, []),
            kind="image",
        )
        kept = await client.send(upload_url("0" * 64, 5, {}, "image"))
    async with rig.client() as http:
        body = {"sha256": "0" * 64, "size_bytes": 5, "kind": "image"}
        refused = await http.post("/uploads", json=body)
        large = {"sha256": "0" * 64, "size_bytes": 2**31}
        too_large = await http.post("/uploads", json=large)
    assert [each.nodes for each in used] == [("n1",)]
    assert [each.name for each in await library.all()] == ["swe:1"]
    assert (await pulled(rig, store, tmp_path / "n2")).digest == used[0].digest
    assert "/images/" in kept.url
    assert (refused.status_code, refused.json()["code"]) == (403, "all_projects")
    assert (too_large.status_code, too_large.json()["code"]) == (413, "too_large")


async def test_a_server_of_an_earlier_version_is_asked_once(
    rig: Rig, store: S3Objects, tmp_path: Path, through_web: list[str]
) -> None:
    local = tmp_path / "large"
    local.write_bytes(LARGE)
    await restarted(rig, store)
    async with rig.served() as client, client.trajectory("t1", task="t") as trajectory:
        await trajectory.files.upload(local, "large")
        unknown = ApiCall("POST", "/api/v1/nothing", lambda answer: None)
        with pytest.raises(NotFound) as refused:
            await client.send(unknown)
        _object_calls.object_failed(client, refused.value)
        assert client in _object_calls.WITHOUT_STORE
        await trajectory.files.download("large", tmp_path / "back")
    assert through_web == ["down"]


async def test_what_cannot_pass_the_store_passes_the_web_process(
    rig: Rig, store: S3Objects, tmp_path: Path, through_web: list[str]
) -> None:
    """No store at all, none at the node, and one that this client does not reach."""
    local = tmp_path / "large"
    local.write_bytes(LARGE)
    unreached = S3Objects(parse_bucket(f"s3://{BUCKET}?endpoint=http://127.0.0.1:9"), retries=0)
    stores = ((None, None), (store, None), (unreached, store))
    for number, (web, node) in enumerate(stores):
        rig.web_objects, rig.node_objects = web, node
        await rig.stop_node()
        await rig.start_node()
        async with rig.served() as client, client.trajectory(f"t{number}", task="t") as trajectory:
            back = tmp_path / "back"
            await trajectory.files.upload(local, "large")
            await trajectory.files.download("large", back)
            assert client in _object_calls.WITHOUT_STORE
            assert back.read_bytes() == LARGE
            back.unlink()
        assert through_web == ["up", "down"]
        through_web.clear()
