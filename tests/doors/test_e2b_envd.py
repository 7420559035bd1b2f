"""Commands, terminals, files and code of sandboxes, by the unmodified SDKs of E2B."""

from __future__ import annotations

import pytest

#: Directory of E2B's user; no path of one machine.
HOME = "/home/" + "user"

SMOKE = """
from e2b import Sandbox
from e2b.exceptions import NotFoundException, TimeoutException
from e2b.sandbox.commands.command_handle import CommandExitException

with Sandbox.create(timeout=300, envs={"A": "sandbox"}) as box:
    run = box.commands.run
    done = run('echo "out $A $B"; pwd; echo err >&2', envs={"B": "b"})
    assert (done.stdout, done.stderr) == ("out sandbox b\\n@HOME\\n", "err\\n"), done
    try:
        run("exit 3")
    except CommandExitException as error:
        assert error.exit_code == 3
    else:
        raise AssertionError("a command that fails raises")
    try:
        run("sleep 60", timeout=1)
    except TimeoutException:
        pass
    else:
        raise AssertionError("a command that takes too long raises")

    server = run("sleep 600", background=True, timeout=0)
    assert run("echo beside").stdout == "beside\\n"  # a second process does not wait for the first
    assert server.pid in [each.pid for each in box.commands.list()]
    assert box.commands.connect(server.pid).pid == server.pid
    assert box.commands.kill(server.pid)
    assert not box.commands.kill(999999)

    cat = run("cat", background=True, stdin=True)
    box.commands.send_stdin(cat.pid, "a\\nb")
    box.commands.close_stdin(cat.pid)
    assert cat.wait().stdout == "a\\nb"

    path = box.files.write("made/by/write.txt", "content").path
    assert path == "@HOME/made/by/write.txt"
    assert run("cat made/by/write.txt").stdout == box.files.read(path) == "content"
    watch = box.files.watch_dir("made", recursive=True)
    run("echo more > made/by/run.txt")
    assert "by/run.txt" in {each.name for each in watch.get_new_events()}
    watch.stop()
    try:
        box.files.read("missing")
    except NotFoundException:
        pass
    else:
        raise AssertionError("a missing file raises")
assert not box.is_running()
print("ok")
"""

ASYNC = """
import asyncio
from e2b import AsyncSandbox, FilesystemEventType, PtySize
from e2b.exceptions import InvalidArgumentException, NotFoundException, SandboxException
from e2b.sandbox.commands.command_handle import CommandExitException


async def raises(kind, call):
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


async def work():
    box = await AsyncSandbox.create(timeout=300)
    run, files = box.commands.run, box.files
    every = await asyncio.gather(*(run(f"sleep 0.2; echo {n}") for n in range(6)))
    assert [each.stdout for each in every] == [f"{n}\\n" for n in range(6)]

    seen = []
    slow = await run("echo 1; sleep 0.5; echo 2", background=True, on_stdout=seen.append)
    await asyncio.sleep(0)
    assert (await slow.wait()).stdout == "1\\n2\\n"
    assert len(seen) == 2, seen
    broken = await run('printf "aaa\\\\xe2"')
    assert broken.stdout == "aaa\\ufffd", broken
    large = await run("head -c 3000000 /dev/zero | tr '\\\\0' x")
    assert len(large.stdout) == 3_000_000
    await raises(InvalidArgumentException, run("true", cwd="/no/such"))

    # A process goes on without its client, and another one reads on.
    left = await run("sleep 1; echo late; exit 4", background=True, timeout=0)
    await left.disconnect()
    again = await box.commands.connect(left.pid)
    error = await raises(CommandExitException, again.wait())
    assert (error.exit_code, error.stdout) == (4, "late\\n"), error
    await raises(NotFoundException, box.commands.connect(left.pid))

    shown = []
    terminal = await box.pty.create(PtySize(rows=24, cols=80), on_data=shown.append, envs={"Z": "zed"})
    other = await box.pty.connect(terminal.pid, on_data=lambda data: None)
    await box.pty.resize(terminal.pid, PtySize(rows=24, cols=101))
    await box.pty.send_stdin(terminal.pid, b"tput cols; echo $Z; exit 5\\n")
    error = await raises(CommandExitException, terminal.wait())
    assert error.exit_code == 5
    assert (await raises(CommandExitException, other.wait())).exit_code == 5
    text = b"".join(shown).decode()
    assert "101" in text and "zed" in text, text
    killed = await box.pty.create(PtySize(rows=24, cols=80), on_data=lambda data: None)
    assert await box.pty.kill(killed.pid)
    assert (await raises(CommandExitException, killed.wait())).exit_code == -1

    content = bytes(range(256)) * 20_000
    await files.write("big.bin", content)
    assert await files.read("big.bin", format="bytes") == content
    assert b"".join([piece async for piece in await files.read("big.bin", format="stream")]) == content
    await files.write("packed", "text " * 1000, gzip=True)
    assert await files.read("packed") == "text " * 1000
    written = await files.write_files([{"path": "m/1", "data": "1"}, {"path": "m/2", "data": b""}])
    assert [each.path for each in written] == ["@HOME/m/1", "@HOME/m/2"]
    assert [each.name for each in await files.list("m")] == ["1", "2"]
    assert "@HOME/m/1" in [each.path for each in await files.list(".", depth=2)]
    assert await files.make_dir("m/d") and not await files.make_dir("m/d")
    await raises(InvalidArgumentException, files.make_dir("m/1"))
    await raises(InvalidArgumentException, files.list("m/1"))
    await run("ln -s 1 link", cwd="m")
    link = await files.get_info("m/link")
    assert (link.type.value, link.symlink_target) == ("file", "@HOME/m/1"), link
    info = await files.get_info("m/1")
    assert (info.size, info.mode, info.permissions, info.owner) == (1, 0o644, "-rw-r--r--", "user")
    assert (await files.rename("m/1", "m/3")).path == "@HOME/m/3"
    await raises(NotFoundException, files.rename("m/1", "m/4"))
    await files.remove("m/none")
    await files.remove("m")
    assert not await files.exists("m")

    events, wrote = [], asyncio.Event()

    def note(event):
        events.append((event.type, event.name))
        if events[-1] == (FilesystemEventType.WRITE, "new/file"):
            wrote.set()

    await files.make_dir("watched")
    watch = await files.watch_dir("watched", on_event=note, recursive=True)
    await files.make_dir("watched/new")
    await files.write("watched/new/file", "x")
    await asyncio.wait_for(wrote.wait(), 30)
    await watch.stop()
    await raises(SandboxException, files.watch_dir("big.bin", on_event=print))
    await raises(NotFoundException, files.watch_dir("none", on_event=print))

    last = await run("sleep 600", background=True)
    await box.kill()
    error = await raises(SandboxException, last.wait())
    assert "killed or reached its end of life" in str(error), error


asyncio.run(work())
print("ok")
"""

SIGNALS = """
import json, os, struct, urllib.request
from e2b import Sandbox
from e2b.sandbox.commands.command_handle import CommandExitException

box = Sandbox.create(timeout=300)
shown = {"E2b-Sandbox-Id": box.sandbox_id, "X-Access-Token": box._envd_access_token}


def post(call, content, kind):
    url = os.environ["E2B_SANDBOX_URL"] + "/process.Process/" + call
    request = urllib.request.Request(url, content, {**shown, "Content-Type": kind})
    return urllib.request.urlopen(request, timeout=60)


def terminate(**selector):
    asked = {"process": selector, "signal": "SIGNAL_SIGTERM"}
    post("SendSignal", json.dumps(asked).encode(), "application/json").read()


def ended(command):
    try:
        return command.wait().exit_code
    except CommandExitException as error:
        return error.exit_code


HANDLES = "trap 'echo asked; exit 7' TERM; echo ready; while :; do sleep 0.1; done"
for given in (False, True):  # an action, and a session
    handling = box.commands.run(HANDLES, background=True, stdin=given)
    said = []
    for out, _, _ in handling:
        said.append(out)
        if "ready" in "".join(each or "" for each in said):
            break
    assert handling.pid in [each.pid for each in box.commands.list()]
    again = box.commands.connect(handling.pid)
    terminate(pid=handling.pid)
    assert ended(again) == 7, given

plain = box.commands.run("exec sleep 600", background=True, timeout=0)
while not [each for each in box.commands.list() if each.pid == plain.pid]:
    pass
terminate(pid=plain.pid)
assert ended(plain) == -1

start = {"process": {"cmd": "sleep", "args": ["600"]}, "stdin": False, "tag": "named"}
text = json.dumps(start).encode()
stream = post("Start", struct.pack(">BI", 0, len(text)) + text, "application/connect+json")
_, size = struct.unpack(">BI", stream.read(5))
assert b'"pid"' in stream.read(size)
assert [each.tag for each in box.commands.list() if each.tag] == ["named"]
terminate(tag="named")
assert b"signal: terminated" in stream.read()

written = box.files.write("noted", "x", metadata={"author": "me"})
assert written.metadata == box.files.get_info("noted").metadata == {"author": "me"}
watch = box.files.watch_dir(".", include_entry=True)
box.files.write("seen", "x")
first, *_ = watch.get_new_events()
assert (first.name, first.entry.size) == ("seen", 1), first
box.kill()
print("ok")
"""

INTERPRETER = """
from e2b_code_interpreter import Sandbox
from e2b_code_interpreter.exceptions import TimeoutException

with Sandbox.create(timeout=300, envs={"A": "a"}) as box:
    assert box.run_code("x = 5\\nx + 1").text == "6"
    lines = []
    done = box.run_code("print(x); import os, sys; print(2, file=sys.stderr)", on_stdout=lines.append)
    assert (done.logs.stdout, done.logs.stderr) == (["5\\n"], ["2\\n"]), done
    assert [each.line for each in lines] == ["5\\n"] and done.execution_count == 2
    failed = box.run_code("undefined").error
    assert failed.name == "NameError" and "undefined" in failed.traceback, failed
    assert box.run_code("os.getenv('A') + os.getenv('B')", envs={"B": "b"}).text == "ab"
    assert box.run_code("os.getenv('B', 'none')").text == "none"
    shown = box.run_code("display({'text/latex': 'z'}, raw=True)").results
    assert [list(each.formats()) for each in shown] == [["latex"]], shown
    try:
        box.run_code("import time; time.sleep(600)", timeout=2)
    except TimeoutException:
        pass
    else:
        raise AssertionError("a cell that takes too long raises")
    assert box.run_code("x", timeout=60).text == "5"  # it was interrupted, and its names are kept

    context = box.create_code_context(cwd="@HOME/made")
    assert box.run_code("os = __import__('os'); os.getcwd()", context=context).text == context.cwd
    assert box.run_code("x", context=context).error.name == "NameError"
    assert context.id in [each.id for each in box.list_code_contexts()]
    box.restart_code_context(context.id)
    assert box.run_code("os", context=context).error.name == "NameError"
    box.remove_code_context(context.id)
    assert context.id not in [each.id for each in box.list_code_contexts()]
    busy = box.commands.run("sleep 600", background=True, timeout=0)
    assert box.run_code("x + 2").text == "7"
    box.commands.kill(busy.pid)
print("ok")
"""

JAVASCRIPT = """
import assert from "node:assert"
import { Sandbox } from "e2b"
import { Sandbox as Interpreter } from "@e2b/code-interpreter"

const box = await Sandbox.create({ timeoutMs: 300_000, envs: { A: "a" } })
const done = await box.commands.run("echo out $A; pwd; echo err >&2")
assert.deepEqual([done.stdout, done.stderr], ["out a\\n@HOME\\n", "err\\n"])
await assert.rejects(box.commands.run("exit 3"), (error) => error.exitCode === 3)
await assert.rejects(box.commands.run("sleep 60", { timeoutMs: 1000 }))
const cat = await box.commands.run("cat", { background: true, stdin: true })
await box.commands.sendStdin(cat.pid, "typed")
await box.commands.closeStdin(cat.pid)
assert.equal((await cat.wait()).stdout, "typed")
let text = ""
const terminal = await box.pty.create({
    rows: 24, cols: 80, onData: (data) => { text += new TextDecoder().decode(data) },
})
await box.pty.sendInput(terminal.pid, new TextEncoder().encode("echo $((6*7)); exit\\n"))
await terminal.wait()
assert.match(text, /42/)
await box.files.write("d/a.txt", "content")
assert.equal(await box.files.read("d/a.txt"), "content")
await box.files.write([{ path: "d/1", data: "1" }, { path: "d/2", data: "2" }])
assert.deepEqual((await box.files.list("d")).map((each) => each.name).sort(), ["1", "2", "a.txt"])
assert.equal(await box.files.makeDir("d"), false)
const found = new Promise((resolve) => {
    box.files.watchDir("d", (event) => { if (event.name === "new") resolve(event.type) })
        .then(() => box.files.write("d/new", "x"))
})
assert.equal(await found, "create")
await assert.rejects(box.files.read("none"), /not/)
assert.ok(await box.kill())
assert.equal(await box.isRunning(), false)

const cells = await Interpreter.create({ timeoutMs: 300_000 })
await cells.runCode("x = 20")
assert.equal((await cells.runCode("x + 1")).text, "21")
assert.equal((await cells.runCode("1/0")).error.name, "ZeroDivisionError")
await cells.kill()
console.log("ok")
process.exit(0)
"""


def _address(tangram: object) -> dict[str, str]:
    access = tangram.access  # type: ignore[attr-defined]
    door = access["url"] + "/e2b"
    return {"E2B_API_URL": door, "E2B_SANDBOX_URL": door, "E2B_API_KEY": access["token"]}


def test_a_sandbox_runs_commands_and_holds_files(tangram, sdk, run) -> None:
    assert run(sdk("e2b"), SMOKE.replace("@HOME", HOME), **_address(tangram)).stdout == "ok\n"


@pytest.mark.long
@pytest.mark.parametrize(
    "script", [ASYNC, SIGNALS, INTERPRETER], ids=["async", "signals", "interpreter"]
)
def test_the_python_sdk_works_unmodified(tangram, sdk, run, script: str) -> None:
    assert run(sdk("e2b"), script.replace("@HOME", HOME), **_address(tangram)).stdout == "ok\n"


@pytest.mark.long
def test_the_javascript_sdk_works_unmodified(tangram, node_sdk, run) -> None:
    assert (
        run(node_sdk("e2b"), JAVASCRIPT.replace("@HOME", HOME), **_address(tangram)).stdout
        == "ok\n"
    )
