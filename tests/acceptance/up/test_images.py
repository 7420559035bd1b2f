"""`tangram image import` on a fresh `tangram up`, and an action in the image."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.conformance.isolations import isolations
from tests.conformance.object_store import BUCKET, s3_server
from tests.small_image import docker_tar, root_tar

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif("bwrap" not in isolations(), reason="no sandbox works here"),
]


def verb(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tangram_client", *words],
        cwd=ROOT, env={**os.environ, "TANGRAM_HOME": str(home)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def in_image(image: str, script: str, trajectory: str) -> dict:
    return {
        "task": "t", "trajectory": trajectory, "kind": "exec", "cost": {"cpu": 1},
        "environment": {"image": image}, "exec": {"command": ["sh", "-c", script]},
    }  # fmt: skip


def test_nodes_that_lack_an_image_pull_it_from_the_object_store(
    start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    large = tmp_path / "large.tar"
    content = os.urandom(9 * 2**20)
    large.write_bytes(docker_tar(root_tar(("large", tarfile.REGTYPE, 0o644, 0, content))))
    with s3_server() as s3:
        monkeypatch.setenv("TANGRAM_OBJECT_STORE", f"s3://{BUCKET}?endpoint={s3}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        tangram = start("--no-demo", "--nodes", "2", "--cpus", "2", home=tmp_path / "home")
        tangram.wait_until_ready()
        imported = verb(tangram.home, "image", "import", "small:1", str(large), "-o", "json")
        assert imported.returncode == 0, imported.stderr
        nodes = json.loads(imported.stdout)["nodes"]
        assert len(nodes) == 2
        for node in nodes:  # as nodes that have joined since
            assert verb(tangram.home, "image", "rm", "small:1", "--node", node).returncode == 0
        (left,) = json.loads(verb(tangram.home, "image", "list", "-o", "json").stdout)
        assert (left["name"], left["nodes"], left["stored"]) == ("small:1", [], True)

        names = [f"trj-{number}" for number in range(8)]
        batch = [in_image("small:1", "echo $OF_IMAGE", name) for name in names]
        items = tangram.post("/api/v1/actions/batch", {"actions": batch})["items"]
        done = [tangram.get(f"/api/v1/actions/{each['id']}?wait=60") for each in items]
        assert [each["result"]["stdout"] for each in done] == ["yes\n"] * 8, done
        used = {each["placement"]["node"] for each in done}
        listed = json.loads(verb(tangram.home, "image", "list", "-o", "json").stdout)
        assert [set(each["nodes"]) for each in listed] == [used]
        log = "".join(path.read_text() for path in tangram.home.rglob("*.log"))
        assert log.count("image 'small:1' was pulled") == len(used)
        assert tangram.end() == 0


def test_a_saved_image_is_imported_used_and_removed(start, tmp_path: Path):
    tangram = start("--no-demo", "--nodes", "2", "--cpus", "2", home=tmp_path / "home")
    tangram.wait_until_ready()
    archive = tmp_path / "saved.tar"
    archive.write_bytes(docker_tar(root_tar()))

    imported = verb(tangram.home, "image", "import", "small:1", str(archive))
    assert imported.returncode == 0, imported.stderr
    assert len(imported.stderr.split(",")) == 2, imported.stderr

    def act(image: str, script: str, trajectory: str = "trj-1") -> dict:
        action = in_image(image, script, trajectory)
        done: dict = tangram.post("/api/v1/actions?wait=120", action)
        return done

    done = act("small:1", "cat /etc/of-the-image; echo $OF_IMAGE; echo kept >/kept")
    assert done["result"]["stdout"] == "image\nyes\n", done
    assert act("small:1", "cat /kept")["result"]["stdout"] == "kept\n"
    missing = act("other:1", "true", "trj-2")
    assert missing["outcome"] == "infra_failed"
    assert "tangram image import other:1" in missing["detail"]

    assert "small:1" in verb(tangram.home, "image", "list").stdout
    refused = verb(tangram.home, "image", "rm", "small:1")
    assert refused.returncode == 1, refused.stdout
    assert "used by 1 environments" in refused.stderr
    tangram.post("/api/v1/trajectories/trj-1/finish", {})
    assert tangram.end() == 0
