"""The control API of E2B, called by its unmodified SDK."""

from __future__ import annotations

import pytest

SMOKE = """
import time
from e2b import Sandbox, SandboxQuery, SandboxState
from e2b.exceptions import NotFoundException, SandboxException

first = Sandbox.create(timeout=120, metadata={"run": "smoke"}, envs={"A": "1"})
second = Sandbox.create(timeout=120, metadata={"run": "smoke"})
info = first.get_info()
assert info.state == SandboxState.RUNNING, info
assert info.metadata == {"run": "smoke"}, info
assert 60 < (info.end_at - info.started_at).total_seconds() <= 121, info

query = SandboxQuery(metadata={"run": "smoke"})
pages = Sandbox.list(query=query, limit=1)
found = []
while pages.has_next:
    found += [each.sandbox_id for each in pages.next_items()]
assert found == [second.sandbox_id, first.sandbox_id], found

first.set_timeout(600)
assert (first.get_info().end_at - info.end_at).total_seconds() > 300
again = Sandbox.connect(first.sandbox_id, timeout=10)
assert (again.get_info().end_at - info.end_at).total_seconds() > 300
assert again.sandbox_id == first.sandbox_id

assert first.pause() is not False
assert first.get_info().state == SandboxState.PAUSED
paused = Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items()
assert [each.sandbox_id for each in paused] == [first.sandbox_id]
Sandbox.connect(first.sandbox_id, timeout=60)
assert first.get_info().state == SandboxState.RUNNING

(fork,) = first.fork(timeout=60)
assert fork.sandbox_id not in (first.sandbox_id, second.sandbox_id)
snapshot = first.create_snapshot()
listed = Sandbox.list_snapshots(sandbox_id=first.sandbox_id).next_items()
assert [each.snapshot_id for each in listed] == [snapshot.snapshot_id]
copy = Sandbox.create(snapshot.snapshot_id, timeout=60)
assert Sandbox.delete_snapshot(snapshot.snapshot_id)
assert not Sandbox.delete_snapshot(snapshot.snapshot_id)
assert len(first.get_metrics()) == 1

for each in (first, second, fork, copy):
    assert each.kill()
    assert not Sandbox.kill(each.sandbox_id)
assert Sandbox.list(query=query).next_items() == []
try:
    Sandbox.create("no-such-template")
except SandboxException as error:
    assert "no-such-template" in str(error), error
else:
    raise AssertionError("an unknown template began")
print("ok")
"""


def test_the_sdk_makes_lists_renews_forks_keeps_and_ends_sandboxes(tangram, sdk, run):
    url, token = tangram.access["url"], tangram.access["token"]
    done = run(
        sdk("e2b"), SMOKE, E2B_API_URL=f"{url}/e2b", E2B_SANDBOX_URL=f"{url}/e2b", E2B_API_KEY=token
    )

    assert done.stdout == "ok\n"


TEMPLATE = """
import pathlib
from e2b import Sandbox, Template

folder = pathlib.Path("context/folder")
folder.mkdir(parents=True)
(folder / "test.txt").write_text("copied")
(folder / "left.bin").write_text("not copied")
template = (
    Template(file_context_path="context")
    .from_base_image()
    .copy("folder/*.txt", "there", force_upload=True)
    .run_cmd("cat there/test.txt > made.txt")
    .set_envs({"K": "v"})
)
for name in ("copies", "again"):  # the second build finds the files
    built = Template.build(template, alias=name, cpu_count=1, memory_mb=512)
    with Sandbox.create(built.template_id, timeout=120) as box:
        assert box.commands.run("cat there/test.txt made.txt; ls there; echo $K").stdout == (
            "copiedcopiedtest.txt\\nv\\n"
        )
print("ok")
"""


@pytest.mark.long
def test_the_sdk_builds_a_template_with_files(tangram, sdk, run):
    door = tangram.access["url"] + "/e2b"
    access = {"E2B_API_URL": door, "E2B_SANDBOX_URL": door, "E2B_API_KEY": tangram.access["token"]}

    assert run(sdk("e2b"), TEMPLATE, **access).stdout == "ok\n"
