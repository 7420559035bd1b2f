"""Containers move to another engine's node with all their files; what is not quiet is refused with a code."""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from domain.action import EnvironmentSpec
from domain.errors import Conflict, InvalidRequest, Unavailable
from domain.moves import IN_MEMORY, LAYER, PROCESS, SESSION
from domain.ports import DriverContext
from domain.ports.sessions import SessionSpec
from managers.cpu.containers import ContainerDriver
from tests.conformance.driver import TRAJECTORY, an_order
from tests.conformance.moving import FETCH, NAME, ORDER, MovingConformance, moved, run
from tests.docker_engine import IMAGE, DockerEngine
from tests.tiers import by_tier

pytestmark = pytest.mark.slow
#: Where the layers of containers are: on a disk for each environment, or where the engine keeps them.
LAYERS = {"disk": "auto", "engine": "watched"}
PAIRS = [("direct", "disk"), ("api", "engine"), ("direct", "engine"), ("api", "disk")]


def _empty_archive() -> bytes:
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    return empty.getvalue()


@pytest.mark.parametrize(("way", "layers"), by_tier(PAIRS[:2], PAIRS[:2], PAIRS))
class TestContainerMoving(MovingConformance):
    given_file = "/usr/bin/yes"

    @pytest.fixture(autouse=True)
    def place(self, engine: DockerEngine, tmp_path: Path, way: str, layers: str) -> None:
        self.engine, self.directory, self.way, self.layers = engine, tmp_path, way, layers

    def make(self, node: str) -> ContainerDriver:
        given = {
            "docker_host": self.engine.host, "docker_image": IMAGE, "docker_way": self.way,
            "docker_grace_seconds": "0.1", "environment_disks": LAYERS[self.layers],
        }  # fmt: skip
        return ContainerDriver(DriverContext(node, self.directory / node, {}, given))

    async def test_what_is_not_packed_keeps_an_environment_where_it_is(self, drivers):
        source, _ = drivers
        await run(source, "echo 1 > /dev/shm/a; mkdir -p /run/x")
        with pytest.raises(Conflict) as refused:
            await source.moving.pack(ORDER)
        assert refused.value.code == IN_MEMORY
        await run(source, "rm /dev/shm/a", "act_2")
        if self.way == "direct":
            await run(source, "sleep 600 > /dev/null 2>&1 &", "act_3")
            with pytest.raises(Conflict) as refused:
                await source.moving.pack(ORDER)
            assert refused.value.code == PROCESS
            [program] = source.environments.list_processes(TRAJECTORY)
            source.environments.end_process(TRAJECTORY, program.pid)
            while source.environments.list_processes(TRAJECTORY):
                await asyncio.sleep(0.01)  # the kernel ends it
            spec = SessionSpec(name="s", shell=("sh",), pty=False)
            await source.sessions.open(TRAJECTORY, spec, EnvironmentSpec())
            with pytest.raises(Conflict) as refused:
                await source.moving.pack(ORDER)
            assert refused.value.code == SESSION
            await source.sessions.close(TRAJECTORY, "s")
        await source.moving.pack(ORDER)

    async def test_layers_that_an_engine_cannot_send_stay_and_a_workspace_goes(self, drivers):
        source, target = drivers
        # No such engine is here: this one says that it is one.
        source._engine.info["DriverStatus"] = [["driver-type", "io.containerd.snapshotter.v1"]]
        await run(source, "echo 1 > a")
        await moved(source, target)
        assert await run(target, "cat a", "act_2") == "1\n"
        await source.drop_snapshot("lab", NAME)
        await run(source, "echo 1 > /var/lib/o", "act_3")
        if self.layers == "engine":
            with pytest.raises(Conflict) as refused:
                await source.moving.pack(ORDER)
            assert refused.value.code == LAYER
            assert await source.snapshots() == []
        else:
            await source.moving.pack(ORDER)

    async def test_an_image_with_another_content_is_refused(self, drivers):
        source, target = drivers
        await run(source, "echo 1 > /var/lib/o")
        await source.moving.pack(ORDER)
        with self.engine.client() as client:
            client.import_image_from_data(_empty_archive(), "other", "1")
        fetch = replace(FETCH, environment=EnvironmentSpec(image="other:1"))
        with pytest.raises(InvalidRequest, match="another content"):
            await target.moving.receive(fetch, source.export_snapshot("lab", NAME))

    async def test_a_container_whose_image_has_another_content_now_stays(self, drivers):
        source, _ = drivers
        spec = EnvironmentSpec(image="own:1")
        with self.engine.client() as client:
            client.tag(IMAGE, "own", "1", force=True)
            order = an_order("sh", "-c", "echo 1 > a")
            report = await source.run(replace(order, environment=spec), lambda: None)
            assert report.result is not None, report
            client.import_image_from_data(_empty_archive(), "own", "1")
        with pytest.raises(Unavailable, match="another content now"):
            await source.moving.pack(replace(ORDER, environment=spec))
        assert await source.snapshots() == []

    async def test_no_image_is_left_behind(self, drivers):
        source, target = drivers
        await run(source, "echo 1 > /var/lib/o")
        await moved(source, target)
        for driver in drivers:
            await driver.remove_environment(TRAJECTORY)
        with self.engine.client() as client:
            for driver in drivers:
                labelled = {"label": f"tangram.owner={driver.owner}"}
                assert client.images(filters=labelled) == []
