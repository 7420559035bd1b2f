"""Templates of E2B: images and other templates, builds with their steps, and the files that these copy."""

from __future__ import annotations

import asyncio
import io
import tarfile
from datetime import UTC, datetime
from typing import Any

import httpx

from domain.action import EnvironmentSpec
from domain.ports import RunOrder
from facades.e2b.sandbox import sandbox_of
from managers.cpu.fake import Play
from tests.integration.runtime.rig import TOKENS, Rig
from tests.integration.runtime.test_e2b_control import Client, asked, clients
from tests.integration.runtime.test_watchers import calls


async def test_a_template_is_built_from_an_image_and_names_it(rig: Rig) -> None:
    async with clients(rig) as client:
        name = "a%3Adefault"
        assert (await client.get("/templates/aliases/no%2Fsuch%20image")).status_code == 404
        made = (await client.post("/v3/templates", json={"name": "a:default"})).json()
        build = f"/templates/{made['templateID']}/builds/{made['buildID']}"
        steps = [{"type": "ENV", "args": ["K", "v"]}, {"type": "WORKDIR", "args": ["/"]}]
        answer = await client.post(f"/v2{build}", json={"fromImage": "python:3.11", "steps": steps})
        assert answer.status_code == 202
        assert (await client.get(f"{build}/status")).json()["status"] == "ready"
        assert (await client.get(f"/templates/aliases/{name}")).json()["templateID"] == "a"

        sandbox = await client.created(templateID="a", envVars={"L": "w"})
        found = await sandbox_of(client.port, asked(sandbox))
        assert found.envs == {"K": "v", "L": "w"}
        details = await found.native.trajectory(found.name)
        assert isinstance(details.environment, EnvironmentSpec)
        assert details.environment.image == "python:3.11"
        assert (await client.delete("/templates/a")).status_code == 204


async def built(client: Client, name: str, *steps: list[str]) -> dict[str, Any]:
    """Return the end of a build whose steps are given by type and arguments."""
    made = (await client.post("/v3/templates", json={"name": name})).json()
    build = f"/templates/{name}/builds/{made['buildID']}"
    given = [{"type": each[0], "args": each[1:]} for each in steps]
    await client.post(f"/v2{build}", json={"fromTemplate": "base", "steps": given})
    async with asyncio.timeout(120):
        while True:
            status = (await client.get(f"{build}/status")).json()
            if status["status"] not in ("building", "waiting"):
                return status
            await asyncio.sleep(0.01)


async def test_a_build_with_a_step_that_is_not_run_says_so(rig: Rig) -> None:
    async with clients(rig) as client:
        status = await built(client, "b", ["ADD", "a", "b"])

        assert status["status"] == "error"
        assert "ADD" in status["reason"]["message"]


async def test_files_are_uploaded_by_a_link_before_a_build_copies_them(rig: Rig) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        member = tarfile.TarInfo("folder/a.txt")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"a"))
    orders: list[RunOrder] = []

    def play(order: RunOrder) -> Play:
        orders.append(order)
        return Play()

    rig.driver.script = play
    copying = {"type": "COPY", "args": ["folder", "there"], "filesHash": "5f5f"}
    async with clients(rig) as client:

        async def end(name: str) -> dict[str, Any]:
            made = (await client.post("/v3/templates", json={"name": name})).json()
            build = f"/templates/{name}/builds/{made['buildID']}"
            await client.post(f"/v2{build}", json={"fromTemplate": "base", "steps": [copying]})
            async with asyncio.timeout(120):
                while True:
                    status = (await client.get(f"{build}/status")).json()
                    if status["status"] not in ("building", "waiting"):
                        return dict(status)
                    await asyncio.sleep(0.01)

        early = await end("f")
        link = await client.get("/templates/f/files/5f5f")
        url = httpx.URL(link.json()["url"])
        own = {"x-api-key": ""}
        refused = [
            await client.put(str(url.copy_with(query=None)), content=b"x", headers=own),
            await client.put(str(url).replace("5f5f", "6a6a"), content=b"x", headers=own),
        ]
        sent = await client.put(str(url), content=archive.getvalue(), headers=own)
        again = await client.get("/templates/g/files/5f5f")
        late = await end("g")
    assert (early["status"], "not uploaded" in early["reason"]["message"]) == ("error", True)
    assert (link.status_code, link.json()["present"]) == (201, False)
    assert [each.status_code for each in refused] == [401, 401]
    assert (sent.status_code, again.json()["present"]) == (200, True), sent.text
    assert late["status"] == "ready", late
    assert len(orders) == 1


def archive_of(**files: bytes) -> bytes:
    """Return a tar archive of files of a folder."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"folder/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


async def test_an_upload_that_breaks_off_leaves_no_files_and_a_repeated_one_replaces_them(
    rig: Rig,
) -> None:
    whole, link = archive_of(a=b"a" * 20_000, b=b"b"), "/templates/f/files/7b7b"
    day = datetime.now(UTC).toordinal()
    async with clients(rig) as client:
        url = (await client.get(link)).json()["url"]
        broken = await client.put(url, content=whole[:15_000], headers={"x-api-key": ""})
        after = (await client.get(link)).json()["present"]
        sent = [
            await client.put(url, content=each, headers={"x-api-key": ""})
            for each in (whole, archive_of(b=b"c"))
        ]
        present = (await client.get(link)).json()["present"]
        native = calls(client.gateway, TOKENS["trainer"])
        store = f"e2b-template-files-7b7b-{day}"
        entries = await native.entries(store, "/workspace")
        files = await native.entries(store, "/workspace/files/folder")
    assert (broken.status_code >= 400, after) == (True, False), broken.text
    assert ([each.status_code for each in sent], present) == ([200, 200], True)
    assert [each.name for each in entries] == ["files"]
    assert [each.name for each in files] == ["b"]


async def test_the_steps_of_a_build_run_and_their_files_are_its_template(rig: Rig) -> None:
    rig.driver.script = lambda order: Play()
    async with clients(rig) as client:
        status = await built(client, "c", ["ENV", "K", "v"], ["RUN", "true"])
        assert status["status"] == "ready", status
        first = await sandbox_of(client.port, asked(await client.created(templateID="c")))
        assert first.envs == {"K": "v"}
        details = await first.native.trajectory(first.name)
        assert isinstance(details.environment, EnvironmentSpec)
        assert details.environment.snapshot == f"c.{status['buildID']}"

        again = await built(client, "c", ["RUN", "true"])
        # The snapshot of the build before is removed once the new one is ready.
        while len(snapshots := (await client.get("/snapshots")).json()) > 1:
            pass
        assert [each["snapshotID"] for each in snapshots] == [f"c.{again['buildID']}"]
        await client.delete("/templates/c")
        assert (await client.get("/snapshots")).json() == []


async def test_a_build_whose_web_process_ended_can_be_repeated(rig: Rig) -> None:
    rig.driver.script = lambda order: Play()
    async with clients(rig) as client:
        made = (await client.post("/v3/templates", json={"name": "e"})).json()
        # As it is stored when its process ends.
        record = {"build": made["buildID"], "status": "building"}
        await client.port.records.put("default", "e", record)
        status = (await client.get(f"/templates/e/builds/{made['buildID']}/status")).json()
        assert status["status"] == "error"
        assert "build again" in status["reason"]["message"]

        assert (await built(client, "e", ["RUN", "true"]))["status"] == "ready"


async def test_a_build_whose_command_fails_shows_its_output(rig: Rig) -> None:
    rig.driver.script = lambda order: Play(exit_code=2, stdout="no compiler")
    async with clients(rig) as client:
        status = await built(client, "d", ["RUN", "make"])

        assert status["status"] == "error"
        assert "exit code 2" in status["reason"]["message"]
        assert "no compiler" in status["reason"]["message"]
        assert (await client.post("/v2/sandboxes", json={"templateID": "d"})).status_code == 404
