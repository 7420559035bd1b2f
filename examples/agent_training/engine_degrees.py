"""The degree of the engines: how many ranks each engine is divided over, chosen by a selector before the rollouts of a step.

A rank has a limit of memory. While contexts are short an engine fits on one rank, which samples fastest. Agents that learn read more, contexts
grow, and a rank lacks the memory for the keys and values of all its rollouts; on two ranks each has half of the heads.

Rules
1. The selector is an outside trainer's: it has no service, it observes the run's fleet, and the trainer asks it.
2. Each degree is measured once with checkpoint 0, by full batches at context lengths up to the model's; a cell that lacks memory is a result. Tangram
   keeps the cells, so a run that continues measures what is missing.
3. The question is asked with the contexts of the last step. Where the selector has no answer, the engines stay as they are.
4. Engines are started again on another degree between two steps, when nothing is sampled. What that took is sent to the selector.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx
import msgspec

from domain.selectors import Parallelism, ParallelismProfile, ProfileIdentity, SwitchCost
from examples.agent_training import note_task
from examples.agent_training.engines import EngineProcesses, apply
from examples.agent_training.training_options import TrainingOptions
from managers.gpu.profiling import CallAnswer, CellReport, ProfilePlan, Profiler
from tangram_client import AsyncClient, Client
from tangram_client.errors import ConflictError, InvalidRequestError, NotFoundError
from tangram_client.retry import RetryPolicy
from tangram_web.selector_profile import SelectorCells

#: Ranks of an engine, the preferred number first.
DEGREES: Final = (1, 2)
#: The longest context of a step over the longest one before it, at most: a task gets one hop more at a time. It is also the room that an engine
#: reserves for the longest answer.
_GROWTH: Final = 1.1
_ENGINE: Final = "examples.tensor_parallel"
_APPLIED_SECONDS: Final = 30.0
_PATIENT: Final = RetryPolicy(attempts=10_000, total_seconds=600.0)


class EngineDegrees:
    """Asks the selector of a run, and divides the engines as it says."""

    def __init__(
        self,
        client: Client,
        options: TrainingOptions,
        engines: EngineProcesses,
        register: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        """``register``: tells Tangram of the engines again."""
        self._client, self._options, self._engines = client, options, engines
        self._register, self._say = register, say
        self.name = options.name
        self.degrees = [Parallelism(tp=each, dp=options.engines) for each in DEGREES]
        memory = f"{options.rank_memory_bytes // 2**20} MiB" if options.rank_memory_bytes else "no limit"  # fmt: skip
        self._identity = ProfileIdentity(f"ranks of {memory}", "small agent", _ENGINE)
        #: Changes of the degree in this process of the trainer.
        self.switches = 0

    def declare(self) -> None:
        """Declare the selector, measure cells that are missing, and divide the engines as is in force."""
        spec = {
            "degrees": [{"tp": each.tp, "dp": each.dp} for each in self.degrees],
            "contexts": self._options.contexts, "responses": [self._options.at_once], "observes": [f"fleet:{self.name}"],
            "context_limit": note_task.CONTEXT, "growth": _GROWTH, "hardware": self._identity.hardware,
        }  # fmt: skip
        apply(self._client, "Selector", self.name, spec)
        self._await_applied()
        asyncio.run(self._measure())
        self._divide(self._in_force()[0])

    def choose(self, step: int, figures: Mapping[str, Any]) -> Mapping[str, Any]:
        """Divide the engines for the rollouts of a step, whose contexts are about those of ``figures``; return figures of the step."""
        if figures.get("context"):
            try:
                self._client.selectors.decision(
                    self.name, context=figures["context"], longest=figures["longest"],
                    responses=self._options.at_once, step=step,
                )  # fmt: skip
            except (ConflictError, InvalidRequestError) as error:
                self._say(f"the selector has no other answer: {error}")
            # Generations that it saw may have changed its choice before it was asked.
            self._divide(*self._in_force())
        return {"switches": self.switches, "degree": self._engines.degree}

    def _in_force(self) -> tuple[int, str]:
        """Return the degree in force, and why it was chosen."""
        found = self._client.selectors.get(self.name)
        degree = found["stages"][0].get("parallelism")
        latest = found["switches"][-1:] if degree else []
        return (degree["tp"] if degree else DEGREES[0]), (latest[0]["why"] if latest else "")

    def _divide(self, degree: int, why: str = "") -> None:
        former = self._engines.degree
        if degree == former:
            return
        seconds = self._engines.divide(degree)
        self._register()
        if why:
            self.switches += 1
            self._say(f"engines are divided over {degree} instead of {former} after {seconds:.1f} s: {why}")  # fmt: skip
            cost = SwitchCost(self._of(degree), round(seconds, 3), self._of(former))
            self._put(ParallelismProfile(self._identity, switches=(cost,)))

    def _of(self, degree: int) -> Parallelism:
        return Parallelism(tp=degree, dp=self._options.engines)

    async def _measure(self) -> None:
        plan = ProfilePlan(
            self.degrees, self._options.contexts, [self._options.at_once], rounds=2, switches=0
        )
        async with (
            AsyncClient(retry=_PATIENT) as tangram,
            httpx.AsyncClient(trust_env=False, timeout=None) as http,
        ):
            cells = SelectorCells(tangram, self.name, self._identity)
            probe = EngineProbe(http, self._engines)
            profiler = Profiler(
                plan, self._identity, probe, cells, asyncio.gather, time.monotonic, "measured by the trainer"
            )  # fmt: skip
            await profiler.run(self._say_of_cell)

    def _say_of_cell(self, report: CellReport) -> None:
        cell = report.cell
        if cell is None:
            said = f"not measured, {report.why}"
        elif cell.oom:
            said = "out of memory (implied)" if report.implied else "out of memory"
        else:
            said = f"{cell.tokens_per_gpu_second:.0f} tokens a second and rank"
        self._say(f"profile: {report.key}: {said}")

    def _await_applied(self) -> None:
        until = time.monotonic() + _APPLIED_SECONDS
        while True:
            try:
                self._client.selectors.get(self.name)
            except NotFoundError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return

    def _put(self, change: ParallelismProfile) -> None:
        self._client.selectors.put_profile(self.name, msgspec.to_builtins(change))


class EngineProbe:
    """Measures the engines of the run themselves: a call is a full batch of prompts that differ, as those of rollouts do."""

    def __init__(self, http: httpx.AsyncClient, engines: EngineProcesses) -> None:
        self._http, self._engines = http, engines
        self._idle: asyncio.Queue[str] = asyncio.Queue()
        for address in engines.addresses:
            self._idle.put_nowait(address)
        self._lock = asyncio.Lock()

    async def call(self, gpus: int, body: Mapping[str, Any], seconds: float) -> CallAnswer:
        """Post a completion to an engine that is idle, on ``gpus`` ranks."""
        restored = await self._switch(gpus)
        address = await self._idle.get()
        prompt, rows = body["prompt"], int(body["n"])
        # Another token at the beginning makes each prompt one of its own.
        prompts = [[16 + row, *prompt[1:]] for row in range(rows)]
        began = time.monotonic()
        try:
            answer = await self._http.post(
                f"{address}/v1/completions",
                json={**body, "prompt": prompts, "n": 1},
                timeout=seconds,
            )
        except httpx.HTTPError as error:
            return CallAnswer(0, detail=f"{type(error).__name__}: {error}")
        finally:
            self._idle.put_nowait(address)
        spent = time.monotonic() - began
        return CallAnswer(answer.status_code, answer.json(), spent, restored, address)

    async def _switch(self, degree: int) -> float | None:
        """Divide the engines; return what that took, None: nothing. No call is running then: degrees are measured one by one."""
        async with self._lock:
            if degree == self._engines.degree:
                return None
            return await asyncio.to_thread(self._engines.divide, degree)
