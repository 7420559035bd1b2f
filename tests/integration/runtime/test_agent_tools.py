"""Tools of an agent in a real environment: its shell, its kernel and its editor, and the kill of the worker in a call."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from domain.action import Kind
from domain.codec import read_entry
from domain.decisions import Finish
from domain.errors import NotFound
from tangram_client._rollout_calls import RolloutInfo
from tangram_client.aio import AsyncClient
from tangram_client.errors import NotFoundError
from tests.architecture.tree import ROOT
from tests.chat_models import tokenizer
from tests.conformance.isolations import a_driver, isolations
from tests.integration.runtime.rollout_rig import RolloutRig, finished
from tests.integration.runtime.tool_worker_process import main as worker_main
from tests.scripted_backends import ListeningModel, scripted_model, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("bwrap" not in isolations(), reason="no bubblewrap here"),
]
SAMPLING = {"custom_tokenizer": "tokenizer", "max_tokens": 1000, "seed": 1}


def call(name: str, **arguments: Any) -> str:
    """Return an answer that calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


FINISH = call("finish", message="mended")


@dataclass
class Agents:
    """Rollouts in real environments, whose model follows a script."""

    rollouts: RolloutRig
    client: AsyncClient
    served: ListeningModel

    @asynccontextmanager
    async def worker(self, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run a worker process."""
        rig = self.rollouts.rig
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", worker_main.__module__,
            rig.url, rig.keys.prefix, str(self.rollouts.folder), name, cwd=ROOT,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def submit(self, *answers: str) -> str:
        """Submit a rollout whose model gives these answers."""
        self.served.model = scripted_model(*answers)
        [rollout] = await self.client.rollouts.submit(
            "t", "tooled", [{"id": "i"}], llm="small", sampling=SAMPLING,
            environment={"memory_bytes": 2**28},
        )  # fmt: skip
        return rollout

    async def run(self, *answers: str) -> RolloutInfo:
        """Run a rollout to its end."""
        async with self.worker("w1"):
            return await finished(self.client, await self.submit(*answers))

    def seen(self) -> list[str]:
        """Return what the model was given behind each of its answers but the last."""
        found = []
        for one, two in zip(self.served.answered, self.served.answered[1:], strict=False):
            new = two.prompt_ids[len(one.prompt_ids) + len(one.ids) :]
            text = tokenizer().decode(new, special=True)
            found.append(text.partition("<tool_response>\n")[2].rpartition("\n</tool_response>")[0])
        return found

    def commands(self) -> int:
        """Return how many commands a node has run, by the journal."""
        rig = self.rollouts.rig
        entries = cast("list[Any]", rig.redis.xrange(rig.keys.journal))
        made = [
            each for key, fields in entries for each in read_entry(key.decode(), fields).decisions
        ]
        return sum(isinstance(each, Finish) and each.kind is Kind.EXEC for each in made)


@pytest.fixture
async def agents(rollouts: RolloutRig, tmp_path: Path) -> AsyncIterator[Agents]:
    rollouts.rig.driver = a_driver(tmp_path / "node", "bwrap")  # type: ignore[assignment]
    await rollouts.rig.start_node()
    served = ListeningModel(scripted_model(), "sglang")
    async with (
        serving(served) as address,
        rollouts.client() as client,
        rollouts.client("cluster") as operator,
    ):
        await operator.backends.add("small", f"{address}/v1", seats=4)
        yield Agents(rollouts, client, served)
    await rollouts.end()
    await rollouts.rig.stop_node()


async def test_a_shell_keeps_its_directory_and_variables_between_turns(agents: Agents) -> None:
    result = await agents.run(
        call("bash", command="mkdir -p sub; cd sub; export KEPT=5; f() { echo $KEPT; }"),
        call("bash", command="basename $PWD; f; (exit 3)"),
        call("bash", command="printf 'é%.0s' $(seq 2000)"),
        call("bash", command="sleep 600", timeout=0.3),
        call("bash", command="f; read -p 'Name? ' n; echo Hello $n"),
        call("bash", input="Ada"),
        call("bash", command="kill -9 $$"),
        call("bash", command="pwd; echo kept: $KEPT"),
        FINISH,
    )

    assert (result.outcome, result.reward) == ("completed", 1.0), result.reason
    assert result.body["detail"] == {"ended": "finished"}
    one, two, cut, late, asked, typed, dead, after = agents.seen()
    assert (one, two) == ("[exit status 0]", "sub\n5\n[exit status 3]")
    assert "\ufffd" not in cut
    assert "of 4000 bytes are missing here]" in cut
    assert cut.startswith("é" * 125)
    assert late.endswith("[Not done after 0.3 s: it was interrupted.]")
    assert asked == "5\nName? \n[The program waits for input: give it with `input`.]"
    assert typed == "Ada\nHello Ada\n[exit status 0]"
    assert "The shell ended with exit status 137" in dead
    assert "/workspace\nkept:\n[This is a new shell" in after


async def test_the_editor_and_the_kernel_work_on_the_files_of_the_shell(agents: Agents) -> None:
    path = "/workspace/sums.py"
    result = await agents.run(
        call(
            "str_replace_editor", command="create", path=path, file_text="def f():\n    return 1\n"
        ),
        call("ipython", code="import sums; x = sums.f(); x"),
        call("str_replace_editor", command="str_replace", path=path, old_str="1", new_str="41"),
        call("ipython", code="import importlib; importlib.reload(sums).f() + x"),
        call("bash", command="grep -c 41 sums.py"),
        call("ipython", code="import os; len(os.sched_getaffinity(0))"),
        call("bash", command="nproc"),
        call("ipython", code="import os; os._exit(3)"),
        call("ipython", code="while True: pass", timeout=0.3),
        call("str_replace_editor", command="undo_edit", path=path),
        call("bash", command="cat sums.py"),
        FINISH,
    )

    assert (result.outcome, result.reward) == ("completed", 1.0), result.reason
    created, one, edited, two, counted, cores, of_shell, died, late, undone, shown = agents.seen()
    assert created == f"File created successfully at: {path}"
    assert (one, two) == ("1", "42")
    assert "     2\t    return 41\n" in edited
    assert counted == "1\n[exit status 0]"
    assert (cores, of_shell) == ("1", "1\n[exit status 0]"), "each has the core of its action"
    assert died == "[It ended: the kernel ended with exit status 3. Its variables are gone.]"
    assert "KeyboardInterrupt" in late
    assert "undone successfully" in undone
    assert shown == "def f():\n    return 1\n[exit status 0]"


async def test_kill_9_of_the_worker_in_a_tool_call_runs_it_once(agents: Agents) -> None:
    script = "echo ran >>ran; touch begun; while [ ! -e go ]; do sleep 0.05; done; wc -l <ran"
    async with agents.worker("w1") as first:
        rollout = await agents.submit(call("bash", command=script), FINISH)
        environment = f"{rollout}-run"
        async with asyncio.timeout(120):
            while not await _has(agents.client, environment, "begun"):
                await asyncio.sleep(0.05)
        first.kill()
        await first.wait()
        async with agents.worker("w2"):
            await agents.client.put_file(environment, "go", b"")
            result = await finished(agents.client, rollout)

    assert (result.outcome, result.worker, result.attempt) == ("completed", "w2", 2), result
    assert agents.seen() == ["1\n[exit status 0]"]
    assert agents.commands() == 1


async def _has(client: AsyncClient, trajectory: str, path: str) -> bool:
    try:
        await client.get_file(trajectory, path)
    except (NotFoundError, NotFound):
        return False
    return True
