"""Children end in the reverse order of their start, and a hopeless one ends the start."""

from __future__ import annotations

import asyncio

import pytest

from tangram_web.supervisor.children import Program
from tangram_web.supervisor.errors import StartFailed
from tangram_web.supervisor.supervisor import Supervisor
from tangram_web.supervisor.up import first_of
from tests.unit.supervisor.conftest import a_program, line_in

#: Writes its name into a common file on SIGTERM.
NOTES_ITS_END = """
import signal, sys
def end(*_):
    with open({diary!r}, "a") as diary: diary.write({name!r} + "\\n")
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
while True: signal.pause()
"""


@pytest.mark.cpu_seconds(1)  # starts real processes
async def test_children_end_in_the_reverse_order_of_their_start(home, announce):
    diary = home.path / "diary"
    names = ["redis", "loop", "node", "web", "demo"]
    supervisor = Supervisor(home, home.path, announce)
    for name in names:
        source = NOTES_ITS_END.format(diary=str(diary), name=name)
        await supervisor.start([a_program(source, name=name)])
        await line_in(home.log(name), "up")

    await supervisor.stop()

    assert diary.read_text().split() == names[::-1]


@pytest.mark.cpu_seconds(2)
async def test_start_fails_with_the_log_of_a_child_that_keeps_dying(home, announce):
    supervisor = Supervisor(home, home.path, announce, pause=lambda _: asyncio.sleep(0))
    await supervisor.start([a_program("raise SystemExit('no such module')", name="web")])

    with pytest.raises(StartFailed, match=r"web does not stay up:\n.*no such module"):
        await asyncio.wait_for(supervisor.watch(), 120)
    await supervisor.stop()


async def test_start_fails_when_there_is_no_such_program(home, announce):
    supervisor = Supervisor(home, home.path, announce)

    with pytest.raises(StartFailed, match="cannot start redis"):
        await supervisor.start([Program("redis", ("/nonexistent/redis-server",))])
    await supervisor.stop()


async def test_the_first_to_end_cancels_the_others():
    ended = []

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("forever")

    async def at_once():
        raise StartFailed("because")

    with pytest.raises(StartFailed, match="because"):
        await first_of(forever(), at_once())
    assert ended == ["forever"]
