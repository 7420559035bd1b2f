"""Files of environments over HTTP: without a grant, without Redis, and only inside."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from domain.events import FileRequested
from domain.ids import TrajectoryKey, trajectory_key
from domain.ports.files import MAX_UPLOAD_BYTES
from managers.cpu.fake import Play
from tangram_client import InvalidRequest, NotFound
from tests.integration.runtime.rig import Rig

MIB = 2**20
HERE = "/trajectories/t1"


async def opened(client: httpx.AsyncClient, name: str = "t1") -> None:
    answer = await client.post("/trajectories", json={"id": name, "task": "t"})
    assert answer.status_code == 201, answer.text


def an_archive(**members: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return made.getvalue()


async def pieces(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 65536):
        yield content[start : start + 65536]


async def test_a_file_needs_no_core_and_places_its_trajectory(rig: Rig) -> None:
    rig.driver.script = lambda _: Play(seconds=None)
    everything = {"task": "t", "kind": "exec", "cost": {"cpu": 4}, "exec": {"command": ["x"]}}
    async with rig.client() as client:
        running = (await client.post("/actions", json=everything)).json()["id"]
        await rig.until_started(running)
        await opened(client)
        early = await client.get(f"{HERE}/files/a")
        put = await client.put(f"{HERE}/files/a", content=b"content")
        got = await client.get(f"{HERE}/files/a")
        state = (await client.get(f"/actions/{running}")).json()["state"]
        await rig.end_action(running)
    assert (early.status_code, early.json()["code"]) == (404, "not_found")
    assert "nothing has been written or run" in early.json()["detail"]
    assert (put.status_code, put.json()) == (201, {"path": "a", "bytes": 7})
    assert (got.content, got.headers["content-length"], state) == (b"content", "7", "running")
    assert got.headers["x-content-type-options"] == "nosniff"


async def test_only_the_first_write_passes_the_scheduler_and_no_byte_passes_redis(rig: Rig) -> None:
    async with rig.client() as client:
        await opened(client)
        await client.put(f"{HERE}/files/a", content=b"first")
        before = rig.redis.xlen(rig.keys.journal)
        for number in range(20):
            await client.put(f"{HERE}/files/b{number}", content=bytes(MIB))
            await client.get(f"{HERE}/files/b{number}")
    journal = str(rig.redis.xrange(rig.keys.journal))
    assert journal.count(FileRequested.__name__) == 1
    assert rig.redis.xlen(rig.keys.journal) - before < 5
    assert not list(rig.redis.scan_iter("*blob*"))


async def test_large_files_are_streams_and_ranges_are_parts(rig: Rig) -> None:
    content = bytes(range(256)) * 4096 * 5
    async with rig.client() as client:
        await opened(client)
        put = await client.put(
            f"{HERE}/files/big", content=pieces(content), params={"mode": "0755"}
        )
        whole = await client.get(f"{HERE}/files", params={"path": "/workspace/big"})
        parts = {
            asked: await client.get(f"{HERE}/files/big", headers={"Range": asked})
            for asked in (
                "bytes=3-5",
                "bytes=-2",
                f"bytes={5 * MIB}-",
                "bytes=0-1,4-5",
                "lines=1-2",
            )
        }
        facts = (await client.get(f"{HERE}/stat", params={"path": "big"})).json()
    assert put.json()["bytes"] == len(content)
    assert whole.content == content
    assert (parts["bytes=3-5"].status_code, parts["bytes=3-5"].content) == (206, b"\x03\x04\x05")
    assert parts["bytes=3-5"].headers["content-range"] == f"bytes 3-5/{len(content)}"
    assert parts["bytes=-2"].content == b"\xfe\xff"
    assert parts[f"bytes={5 * MIB}-"].status_code == 416
    assert parts["bytes=0-1,4-5"].status_code == parts["lines=1-2"].status_code == 200
    assert (facts["kind"], facts["mode"], facts["size_bytes"]) == ("file", "0755", len(content))


async def test_extended_attributes_are_written_and_shown_where_asked_for(rig: Rig) -> None:
    async with rig.client() as client:
        await opened(client)
        put = {"path": "noted", "attributes": '{"author": "me"}'}
        written = await client.put(f"{HERE}/files", content=b"x", params=put)
        plain = (await client.get(f"{HERE}/stat", params={"path": "noted"})).json()
        shown = (
            await client.get(f"{HERE}/stat", params={"path": "noted", "attributes": "true"})
        ).json()
        listed = (
            await client.get(f"{HERE}/directory", params={"path": "", "attributes": "true"})
        ).json()
        refused = [
            await client.put(
                f"{HERE}/files", content=b"x", params={"path": "r", "attributes": text}
            )
            for text in ("[]", '{"a": 1}', '{"overlay.opaque": "y"}', '{"a": "%s"}' % ("x" * 3000))
        ]
        missing = await client.get(f"{HERE}/files/r")
    assert written.status_code == 201, written.text
    assert "attributes" not in plain
    assert shown["attributes"] == listed["entries"][0]["attributes"] == {"author": "me"}
    assert [(each.status_code, each.json()["errors"][0]["pointer"]) for each in refused] == [
        (422, "?attributes")
    ] * 4
    assert missing.status_code == 404


async def test_an_upload_that_breaks_off_leaves_the_old_file(rig: Rig) -> None:
    messages = [
        {"type": "http.request", "body": bytes(MIB), "more_body": True},
        {"type": "http.disconnect"},
    ]
    scope = {
        "type": "http", "method": "PUT", "path": f"/api/v1{HERE}/files/a", "query_string": b"",
        "headers": [(b"authorization", b"Bearer trainer"), (b"transfer-encoding", b"chunked")],
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    async with rig.client() as client, rig.gateway() as gateway:
        await opened(client)
        await client.put(f"{HERE}/files/a", content=b"old")
        await gateway(scope, receive, send)
        async with asyncio.timeout(60):
            while len((await client.get(f"{HERE}/directory?path=")).json()["entries"]) != 1:
                await asyncio.sleep(0.005)
        assert (await client.get(f"{HERE}/files/a")).content == b"old"
    assert sent == []


async def test_directories_are_made_listed_moved_and_removed(rig: Rig) -> None:
    async with rig.client() as client:
        await opened(client)
        made = await client.put(f"{HERE}/directory", params={"path": "a/b", "mode": "700"})
        await client.put(f"{HERE}/files/a/b/c", content=b"c")
        await client.put(f"{HERE}/files/a/d", content=b"")
        page = (await client.get(f"{HERE}/directory", params={"path": "a", "limit": 1})).json()
        rest = (
            await client.get(f"{HERE}/directory", params={"path": "a", "after": page["next"]})
        ).json()
        moved = await client.post(f"{HERE}/move", json={"source": "a/d", "target": "a/b/d"})
        again = await client.post(f"{HERE}/move", json={"source": "a/b/d", "target": "a/b/c"})
        mode = await client.patch(f"{HERE}/stat", params={"path": "a/b/c"}, json={"mode": "0600"})
        full = await client.delete(f"{HERE}/files/a")
        gone = await client.delete(f"{HERE}/files", params={"path": "a", "recursive": "true"})
        after = await client.get(f"{HERE}/stat", params={"path": "a"})
    assert (made.status_code, made.json()["mode"]) == (201, "0700")
    assert [each["name"] for each in page["entries"] + rest["entries"]] == ["b", "d"]
    assert rest["next"] is None
    assert (moved.status_code, moved.json()["name"]) == (200, "a/b/d")
    assert (again.status_code, again.json()["code"]) == (409, "exists")
    assert mode.json()["mode"] == "0600"
    assert (full.status_code, gone.status_code, after.status_code) == (409, 200, 404)
    assert "recursive=true" in full.json()["detail"]


async def test_trees_go_in_and_out(rig: Rig) -> None:
    async with rig.client() as client:
        await opened(client)
        content = an_archive(src__main=b"print()", big=bytes(3 * MIB))
        put = await client.put(f"{HERE}/tree", params={"path": "project"}, content=content)
        got = await client.get(f"{HERE}/tree", params={"path": "project/src"})
        bad = await client.put(f"{HERE}/tree?path=", content=b"no archive")
        none = await client.get(f"{HERE}/tree?path=missing")
    assert (put.status_code, put.json()) == (201, {"files": 2, "size_bytes": 3 * MIB + 7})
    with tarfile.open(fileobj=io.BytesIO(got.content)) as tar:
        assert tar.getnames() == ["main"]
    assert (bad.status_code, none.status_code) == (422, 404)


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "/", "", "x\0y", "x" * 5000, "/workspace/.."]
)
async def test_a_path_outside_the_tree_is_refused_by_every_route(rig: Rig, path: str) -> None:
    async with rig.client() as client:
        await opened(client)
        await client.put(f"{HERE}/files/a", content=b"a")
        for answer in (
            await client.put(f"{HERE}/files", params={"path": path}, content=b"x"),
            await client.get(f"{HERE}/files", params={"path": path}),
            await client.delete(f"{HERE}/files", params={"path": path}),
            await client.put(f"{HERE}/directory", params={"path": path}),
            await client.post(f"{HERE}/move", json={"source": "a", "target": path}),
        ):
            assert answer.status_code == 422, answer.text


async def test_what_is_missing_is_named(rig: Rig) -> None:
    async with (
        rig.client() as client,
        rig.client("reader") as reader,
        rig.client("stranger") as other,
    ):
        unknown = await client.put(f"{HERE}/files/a", content=b"x")
        await opened(client)
        await client.put(f"{HERE}/files/a", content=b"x")
        pathless = await client.get(f"{HERE}/files")
        may_read = await reader.get(f"{HERE}/files/a")
        may_not = [
            (await reader.put(f"{HERE}/files/a", content=b"y")).status_code,
            (await reader.delete(f"{HERE}/files/a")).status_code,
            (await reader.put(f"{HERE}/tree?path=", content=b"")).status_code,
        ]
        foreign = await other.get(f"{HERE}/files/a")
        mode = await client.put(f"{HERE}/files/a?mode=999", content=b"x")
        flag = await client.delete(f"{HERE}/files/a?recursive=maybe")
        too_large = await client.put(
            f"{HERE}/files/a", content=b"", headers={"Content-Length": str(MAX_UPLOAD_BYTES + 1)}
        )
        await client.post(f"{HERE}/finish")
        async with asyncio.timeout(60):
            while trajectory_key("default", "t1") in rig.driver.storage.environments:
                await asyncio.sleep(0.005)
        over = await client.get(f"{HERE}/files/a")
        late = await client.put(f"{HERE}/files/a", content=b"x")
    assert unknown.status_code == 404
    assert "?path=" in pathless.json()["detail"]
    assert (may_read.content, may_not) == (b"x", [403, 403, 403])
    assert (foreign.status_code, mode.status_code, flag.status_code) == (404, 422, 422)
    assert too_large.status_code == 413
    assert over.status_code == 404, over.text
    assert late.status_code == 404, late.text


async def test_nothing_is_found_once_the_end_of_its_trajectory_is_answered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node still has the files: it removes them a moment later."""
    removed = asyncio.Event()
    remove = rig.driver.remove_environment

    async def later(trajectory: TrajectoryKey) -> None:
        await removed.wait()
        await remove(trajectory)

    monkeypatch.setattr(rig.driver, "remove_environment", later)
    async with rig.client() as client:
        await opened(client)
        await client.put(f"{HERE}/files/a", content=b"x")
        assert (await client.post(f"{HERE}/finish")).status_code == 202
        answers = [
            await client.get(f"{HERE}/files/a"),
            await client.get(f"{HERE}/stat?path=a"),
            await client.get(f"{HERE}/directory?path="),
            await client.put(f"{HERE}/files/a", content=b"y"),
            await client.delete(f"{HERE}/files/a"),
        ]
        there = trajectory_key("default", "t1") in rig.driver.storage.environments
        removed.set()
    assert there
    assert [each.status_code for each in answers] == [404] * 5, [each.text for each in answers]


async def test_the_client_moves_files_and_trees(rig: Rig, tmp_path: Path) -> None:
    here, back = tmp_path / "here", tmp_path / "back"
    (here / "src").mkdir(parents=True)
    (here / "src" / "tool").write_text("#!/bin/sh\n")
    (here / "src" / "tool").chmod(0o755)
    (here / "big").write_bytes(bytes(3 * MIB))
    async with rig.served() as client, client.trajectory("t1", task="t") as trajectory:
        files = trajectory.files
        await files.upload_tree(here, "project")
        await files.upload(here / "big", "/workspace/project/copy", mode=0o600)
        await files.write("project/note", "text")
        (
            rig.driver.storage.environment(trajectory_key("default", "t1")) / "project" / "out"
        ).symlink_to("/etc/passwd")
        listed = [(each.name, each.kind) for each in await files.list("project")]
        part = await files.read("project/note", offset=1, size=2)
        await files.move("project/note", "project/moved")
        await files.set_mode("project/moved", 0o640)
        mode = (await files.stat("project/moved")).mode
        await files.download("project/copy", tmp_path / "copy")
        skipped = await files.download_tree("project", back)
        await files.make_directory("empty/deep")
        await files.remove("empty", recursive=True)
        with pytest.raises(NotFound):
            await files.download("empty", tmp_path / "none")
        with pytest.raises(InvalidRequest):
            await files.read("../x")
    assert listed == [
        ("big", "file"), ("copy", "file"), ("note", "file"), ("out", "link"), ("src", "directory"),
    ]  # fmt: skip
    assert (part, mode) == (b"ex", "0640")
    assert (tmp_path / "copy").stat().st_size == 3 * MIB
    assert not (tmp_path / "none").exists()
    assert skipped == ["out"], "a link that leads out of the directory is not made here"
    assert (back / "src" / "tool").stat().st_mode & 0o777 == 0o755
    assert (back / "moved").read_text() == "text"
