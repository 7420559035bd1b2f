"""Handlers that do what handlers should not do, and a few that do what they should."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from typing import Any

from domain.errors import Conflict
from domain.rollouts import Stage
from rollout.core.results import Failure
from rollout.handlers.base import AgentHandler, CallRefused, Job
from rollout.handlers.process_options import present
from rollout.ports import Record

COMMAND = {"kind": "exec", "exec": {"command": ["true"]}, "cost": {"cpu": 1}}
#: Set by handlers in this process, for tests that wait for them.
reached: dict[str, asyncio.Event] = {}


def reach(job: Job) -> None:
    """Say that a handler got this far."""
    reached.setdefault(job.rollout.id, asyncio.Event()).set()


def a_turn(number: int) -> Record:
    """Return the record of a turn of two tokens of context and one of response."""
    ids = number.to_bytes(4, "little")
    header = {
        "message": {"content": str(number)},
        "weights_version": number,
        "backend": "b1",
        "prompt_tokens": 2,
        "response_tokens": 1,
        "extra": {"finish": "stop", "follows": None, "conversation": ""},
    }
    return Record("turn", header, {"context": bytes(8), "ids": ids})


class Plain(AgentHandler):
    """Does nothing, and gives reward 1."""

    async def init(self, job: Job) -> Any:
        return None

    async def run(self, job: Job) -> Any:
        return {}

    async def eval(self, job: Job) -> Any:
        return 1.0


class Tools(Plain):
    """Calls actions in each stage, and stores turns and an artefact."""

    async def init(self, job: Job) -> Any:
        await job.execute(COMMAND)
        return {"prepared": True}

    async def run(self, job: Job) -> Any:
        stored = sum(record.kind == "turn" for record in job.history)
        for number in range(3):
            if number >= stored:
                await job.turn(a_turn(number))
            await job.execute(COMMAND, name=f"turn-{number}")
        await job.artefact("patch", b"diff")
        assert job.value(Stage.INIT) == {"prepared": True}
        return {"patch": "diff"}

    async def eval(self, job: Job) -> Any:
        end = await job.execute(COMMAND)
        assert job.value(Stage.RUN) == {"patch": "diff"}
        return {"reward": 1.0 - (end.result or {})["exit_code"], "reason": "tests"}

    def final_result(self, job: Job) -> Any:
        return {"calls": sum(record.kind == "call" for record in job.history)}


class FilesAndStreams(Plain):
    """Writes and reads files, and speaks to a server."""

    async def init(self, job: Job) -> Any:
        await job.put("/a", b"1")

    async def run(self, job: Job) -> Any:
        assert await job.get("/a") == b"1"
        channel = await job.connect(8000)
        await channel.send(b"ping")
        assert await channel.receive() == b"ping"
        await channel.close()
        try:
            await job.get("/missing")
        except CallRefused as error:
            return {"refused": str(error)}

    async def eval(self, job: Job) -> Any:
        return float(await job.get("/a") == b"1")


class WritesTooMuch(Plain):
    """Writes a file that is too long for a message to the worker."""

    async def run(self, job: Job) -> Any:
        await job.put("/a", bytes(100_000))


class RaisesInInit(Plain):
    async def init(self, job: Job) -> Any:
        raise LookupError("no image")

    def init_exception(self, job: Job, error: Failure) -> Any:
        return {"type": error.type, "reward": 5.0}


class RaisesInRun(Plain):
    async def run(self, job: Job) -> Any:
        await job.execute(COMMAND)
        raise ValueError("no tool")

    def run_exception(self, job: Job, error: Failure) -> Any:
        raise RuntimeError("again")


class RaisesInEval(Plain):
    async def eval(self, job: Job) -> Any:
        raise ZeroDivisionError


class RaisesWhatIsNoText(Plain):
    async def run(self, job: Job) -> Any:
        raise OSError("no file \udce9")


class Exits(Plain):
    async def run(self, job: Job) -> Any:
        raise SystemExit(3)


class CancelsItself(Plain):
    async def run(self, job: Job) -> Any:
        raise asyncio.CancelledError


class Hangs(Plain):
    async def run(self, job: Job) -> Any:
        reach(job)
        await asyncio.Event().wait()


class HangsInInit(Plain):
    async def init(self, job: Job) -> Any:
        await job.execute(COMMAND)
        reach(job)
        await asyncio.Event().wait()


class NeverStops(Plain):
    async def run(self, job: Job) -> Any:
        while True:
            try:
                await job.execute(COMMAND, name="only")
            except asyncio.CancelledError:
                pass


class WaitsForAnAction(Plain):
    async def run(self, job: Job) -> Any:
        reach(job)
        await job.execute(COMMAND)


class LeavesActions(Plain):
    """Returns while an action of it runs."""

    async def run(self, job: Job) -> Any:
        task = asyncio.ensure_future(job.execute(COMMAND))
        self._kept = task
        reach(job)
        while not job.request.options.get("go"):
            await asyncio.sleep(0)
            if task.done() or reached[f"{job.rollout.id} go"].is_set():
                break
        return {}


class AsksAfterItsEnd(Plain):
    """Has a task that goes on after RUN, and calls in EVAL."""

    async def run(self, job: Job) -> Any:
        self._ended = asyncio.Event()
        self._task = asyncio.ensure_future(self._late(job))

    async def _late(self, job: Job) -> str:
        await self._ended.wait()
        try:
            await job.execute(COMMAND)
        except CallRefused as error:
            return str(error)
        return "it was not refused"

    async def eval(self, job: Job) -> Any:
        self._ended.set()
        return {"reward": None, "reason": await self._task}


class AnswersNan(Plain):
    async def eval(self, job: Job) -> Any:
        return math.nan


class AnswersAnObject(Plain):
    async def run(self, job: Job) -> Any:
        return {"value": object()}


class AnswersText(Plain):
    async def init(self, job: Job) -> Any:
        return "ready"


class AnswersTooMuch(Plain):
    async def run(self, job: Job) -> Any:
        return {"patch": "x" * (9 * 1024 * 1024)}


class OddFinalResult(Plain):
    def final_result(self, job: Job) -> Any:
        return ["not", "a", "dict"]


class Diverges(Plain):
    """Asks for something else each time."""

    asked = 0

    async def run(self, job: Job) -> Any:
        type(self).asked += 1
        reach(job)
        await job.execute({**COMMAND, "env": {"n": str(self.asked)}})


class AsksNonsense(Plain):
    async def run(self, job: Job) -> Any:
        try:
            await job.execute({"kind": "exec"})
        except CallRefused as error:
            return {"refused": str(error)}

    async def eval(self, job: Job) -> Any:
        return {"reward": 0.5, "reason": job.value(Stage.RUN)["refused"]}


class StoresNoTurns(Plain):
    """Stores records of kind turn that a log could never be read with."""

    async def run(self, job: Job) -> Any:
        refused = []
        good = a_turn(0)
        headers: list[dict[str, Any]] = [
            {},
            {**good.header, "extra": {"finish": "stop", "follows": 0}},
            {**good.header, "prompt_tokens": "two"},
        ]
        for header in headers:
            try:
                await job.turn(Record("turn", header, good.arrays))
            except CallRefused as error:
                refused.append(str(error))
        try:
            await job.turn(Record("turn", good.header, {**good.arrays, "ids": b"123"}))
        except CallRefused as error:
            refused.append(str(error))
        await job.turn(good)
        return {"refused": refused}

    async def eval(self, job: Job) -> Any:
        return {"reward": 1.0, "reason": "; ".join(job.value(Stage.RUN)["refused"])}


class Samples(Plain):
    """Waits for a backend."""

    async def run(self, job: Job) -> Any:
        reach(job)
        seats = await job.backends()
        seat = job.seat()
        return {"backends": [each.backend for each in seats], "seat": seat and seat.backend}

    async def eval(self, job: Job) -> Any:
        return {"reward": None, "reason": str(dict(job.value(Stage.RUN)))}


class Parallel(Plain):
    """Makes calls whose ends come in another order than they were made."""

    async def run(self, job: Job) -> Any:
        calls = [
            job.execute({**COMMAND, "metadata": {"n": n}}, name=f"call-{n}") for n in range(20)
        ]
        ends = await asyncio.gather(*calls)
        return {"numbers": [(end.result or {})["n"] for end in ends]}

    async def eval(self, job: Job) -> Any:
        return float(job.value(Stage.RUN)["numbers"] == list(range(20)))


# For real processes.


class Kills(Plain):
    """Ends its process in RUN, as the kernel does when memory is out."""

    async def run(self, job: Job) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class Blocks(Plain):
    """Blocks the event loop of its process, after it stored that it does."""

    async def run(self, job: Job) -> Any:
        await job.artefact("try", b"")
        time.sleep(3600)  # noqa: ASYNC251


class KnowsItsProcess(Plain):
    """Says what its process is and has."""

    async def run(self, job: Job) -> Any:
        return {"pid": os.getpid(), "variables": sorted(os.environ)}

    async def eval(self, job: Job) -> Any:
        return {"reward": None, "reason": " ".join(job.value(Stage.RUN)["variables"])}


class KnowsItsTokenizers(Plain):
    """Says which folders of tokenizers its process may read, and which tokenizers it shares."""

    async def eval(self, job: Job) -> Any:
        from rollout.handlers.model_access import models_of_process

        assert models_of_process() is models_of_process()
        return {"reward": None, "reason": " ".join(present().tokenizers)}


class StoresMuch(Plain):
    """Stores more than fits into one message, and says at last how much of it a successor has."""

    async def run(self, job: Job) -> Any:
        stored = sum(record.kind == "artefact" for record in job.history)
        for number in range(stored, 10):
            await job.artefact(f"part {number}", bytes(20_000))
        if not stored:
            reach(job)
            await asyncio.Event().wait()
        return {"whole": [len(each.arrays["content"]) for each in job.history if each.arrays]}

    async def eval(self, job: Job) -> Any:
        return float(job.value(Stage.RUN)["whole"].count(20_000))


#: Set by tests, for handlers that wait for it.
released: dict[str, asyncio.Event] = {}


class NeedsItsFile(Plain):
    """Reads in RUN what INIT has written, when a test lets it."""

    async def init(self, job: Job) -> Any:
        await job.put("a", b"1")

    async def run(self, job: Job) -> Any:
        reach(job)
        await released.setdefault(job.rollout.id, asyncio.Event()).wait()
        return {"read": (await job.get("a")).decode()}

    async def eval(self, job: Job) -> Any:
        return float(job.value(Stage.RUN)["read"])


class RunsForLong(Plain):
    """Runs a command that ends when a test ends it."""

    async def run(self, job: Job) -> Any:
        await job.execute(
            {"kind": "exec", "exec": {"command": ["sleep", "600"]}, "cost": {"cpu": 1}}
        )


class Serves(Plain):
    """Answers questions in RUN until a test ends it."""

    async def run(self, job: Job) -> Any:
        async def answer(method: str, body: Any) -> Any:
            if method == "refuse":
                raise Conflict("not now", pointer="/n", code="busy")
            if method == "fail":
                raise LookupError("no such thing")
            if method == "hang":
                reach(job)
                await asyncio.Event().wait()
            await job.artefact(str(body["n"]), b"")
            return {"n": body["n"], "access": await job.agent_access()}

        job.serve(answer)
        await released.setdefault(job.rollout.id, asyncio.Event()).wait()
