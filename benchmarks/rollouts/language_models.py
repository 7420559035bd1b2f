"""Language models of the benchmarks: some backends in one process, each with a token time and a number of slots.

    with language_models([1.0, 1.0, 1.0, 3.0], slots=6) as models:
        print(models.addresses, models.stats())

A response takes its tokens times the token time of its backend, while it has one of the slots; so a backend is bound by delay
and not by this machine. Protocol and tokens are those of `examples.rollouts.scripted_llm`; the text follows the plan in the question
(`benchmarks.rollouts.plans`): one command for each step, and at last an answer without a call.

``GET /stats`` counts since ``POST /reset``. ``POST /hold`` lets no response begin until ``POST /release``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import uvicorn

from benchmarks.rollouts.plans import steps_in
from benchmarks.stack import ROOT
from examples.rollouts.scripted_llm import Answered, ScriptedModel, Served, logprob_of, scripted

#: Of the fastest backend.
TOKEN_SECONDS: Final = 0.008
DIALECT: Final = "prorl"
READY_SECONDS: Final = 60.0
_ASSISTANT: Final = "<|im_start|>assistant"
_LAST_WORDS: Final = "Done."
Numbers = dict[str, float]


class PlannedModel(ScriptedModel):
    """Responses that follow the plan in the question."""

    def respond(self, prompt_ids: list[int], most: int, seed: int = 0) -> Answered:
        """Return the response to a prompt."""
        text = self.tokenizer.decode(prompt_ids, special=True)
        steps, turn = steps_in(text), text.count(_ASSISTANT) - 1
        if turn < len(steps):
            said = self.tokenizer.encode(call_of(turn, steps[turn].tool_seconds))
            room = steps[turn].tokens - len(said) - 1
            ids = [*self.tokenizer.encode(" so" * max(0, room)), *said]
        else:
            ids = self.tokenizer.encode(_LAST_WORDS)
        kept = [*ids, max(self.tokenizer.stop_ids)][:most]
        return Answered(prompt_ids, kept, [logprob_of(each) for each in kept], "stop")


def call_of(step: int, seconds: float) -> str:
    """Return the call of the tool of a step; its command notes that it ran."""
    command = f"echo {step} >> ran; sleep {seconds:.3f}"
    call = json.dumps({"name": "bash", "arguments": {"command": command}})
    return f"<tool_call>\n{call}\n</tool_call>"


@dataclass
class DelayedBackend(Served):
    """A backend with slots and counts."""

    slots: int = 8
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.slots)
        self.gate.set()
        self.reset()

    def reset(self) -> None:
        """Begin to count."""
        self.counts: Numbers = {"calls": 0, "tokens": 0, "busy_seconds": 0.0, "seconds": 0.0}
        self._since = time.monotonic()

    def stats(self) -> Numbers:
        """Return the counts, and the part of its slots that was busy."""
        passed = time.monotonic() - self._since
        busy = self.counts["busy_seconds"] / (passed * self.slots)
        return {**self.counts, "asked": self.asked, "busy": round(busy, 3)}

    async def respond(self, prompt_ids: list[int], most: int, seed: int | None) -> Answered:
        """Return a response once a slot was free for its time."""
        self.asked += 1
        await self.gate.wait()
        began = time.monotonic()
        async with self._free:
            taken = time.monotonic()
            found = self.model.respond(prompt_ids, most, seed or 0)
            # The work of this process is part of the declared time.
            passed = time.monotonic() - taken
            await asyncio.sleep(max(0.0, self.token_seconds * len(found.ids) - passed))
            ended = time.monotonic()
        now = {"calls": 1, "tokens": len(found.ids), "busy_seconds": ended - taken}
        now["seconds"] = ended - began
        self.counts = {name: value + now[name] for name, value in self.counts.items()}
        return found

    async def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        match path:
            case "/stats":
                return 200, self.stats()
            case "/reset":
                self.reset()
            case "/hold":
                self.gate.clear()
            case "/release":
                self.gate.set()
            case _:
                return await super().answer(path, body)
        return 200, {}


class LanguageModels:
    """The running backends, from outside."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.addresses = [f"http://127.0.0.1:{port}" for port in ports]

    def stats(self) -> list[Numbers]:
        """Return the counts of each backend."""
        return [self._ask(address, "/stats") for address in self.addresses]

    def call(self, verb: str) -> None:
        """``reset``, ``hold`` or ``release`` all of them."""
        for address in self.addresses:
            self._ask(address, f"/{verb}")

    def llm_seconds(self) -> float:
        """Return the mean time of a response since `reset`, with its wait for a slot."""
        stats = self.stats()
        calls = sum(each["calls"] for each in stats)
        return round(sum(each["seconds"] for each in stats) / calls, 3) if calls else 0.0

    def busy(self) -> float:
        """Return the part of all slots that was busy since `reset`."""
        stats = self.stats()
        return round(sum(each["busy"] for each in stats) / len(stats), 3)

    def _ask(self, address: str, path: str) -> Any:
        with urllib.request.urlopen(address + path, timeout=30) as answer:
            return json.load(answer)


@contextmanager
def language_models(
    factors: Sequence[float], *, slots: int, token_seconds: float = TOKEN_SECONDS
) -> Iterator[LanguageModels]:
    """Start backends, each so many times slower than ``token_seconds``; end them afterwards."""
    sockets = [_listening() for _ in factors]
    times = [str(token_seconds * factor) for factor in factors]
    given = [f"{each.fileno()}:{seconds}" for each, seconds in zip(sockets, times, strict=True)]
    module = "benchmarks.rollouts.language_models"
    command = [sys.executable, "-m", module, "--slots", str(slots), *given]
    process = subprocess.Popen(command, cwd=ROOT, pass_fds=[each.fileno() for each in sockets])
    models = LanguageModels([each.getsockname()[1] for each in sockets])
    for each in sockets:
        each.close()
    try:
        _wait_ready(models, process)
        yield models
    finally:
        process.kill()
        process.wait()


def _listening() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    return listener


def _wait_ready(models: LanguageModels, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY_SECONDS
    while True:
        try:
            models.stats()
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit("the language models did not start") from None
            time.sleep(0.05)
        else:
            return


def main() -> None:
    """Serve on the sockets that the parent opened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("backends", nargs="+", help="DESCRIPTOR:SECONDS of a token")
    options = parser.parse_args()
    model = PlannedModel(scripted([]))
    sockets, by_port = [], {}
    for each in options.backends:
        descriptor, seconds = each.split(":")
        listener = socket.socket(fileno=int(descriptor))
        sockets.append(listener)
        by_port[listener.getsockname()[1]] = DelayedBackend(
            model, DIALECT, token_seconds=float(seconds), slots=options.slots
        )

    async def application(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        await by_port[scope["server"][1]](scope, receive, send)

    # One process: what it costs is beside what it stands for.
    config = uvicorn.Config(application, log_level="error", lifespan="off", backlog=2048)
    uvicorn.Server(config).run(sockets=sockets)


if __name__ == "__main__":
    main()
