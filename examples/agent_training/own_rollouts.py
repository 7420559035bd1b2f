"""Rollouts without the rollout service: the trainer runs its agents itself, in threads, on Tangram's actions alone.

This is how trainers do it that have no such service: a whole batch is sampled, its longest rollout is waited for, and what a killed
trainer had begun is lost. Commands and test cases still run in sandboxes of Tangram, and prompts, tools and tests are those of the service.
"""

from __future__ import annotations

import json
import statistics
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import cycle
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

from examples.agent_training import note_task
from examples.agent_training.row_blocks import RowFacts, block_of
from examples.agent_training.training_loop import RolloutBatch
from examples.agent_training.training_options import TrainingOptions
from examples.rollouts.scripted_llm import TOKENIZER
from rollout.agent.bash import BashTool
from rollout.agent.loop import AgentLoop, AgentTools, AskModel, LoopEnded, LoopLimits
from rollout.agent.tools import FinishTool
from rollout.handlers.code import last_program
from rollout.handlers.programs import source
from rollout.tokens.prompts import PromptEncoder
from rollout.tokens.tokenizer import load_tokenizer
from rollout.tokens.tool_calls import read_response
from tangram_client import Client
from tangram_client.client import Trajectory

_AT_ONCE: Final = 16
_TRIED: Final = 6
_ANSWER_SECONDS: Final = 600.0
#: Status of an engine whose ranks lack memory.
_NO_MEMORY: Final = 507
_CASE_SECONDS: Final = 10.0
_RUNNER: Final = "run_cases.py"


class OwnRollouts:
    """Batches of rollouts that the trainer runs itself."""

    def __init__(
        self,
        client: Client,
        options: TrainingOptions,
        sets: Sequence[note_task.NoteSet],
        doors: Sequence[tuple[str, Mapping[str, str]]],
        state: Mapping[str, Any] | None,
    ) -> None:
        """``doors``: address and headers of where to sample, taken in turn."""
        self._client, self._options = client, options
        self._instances = note_task.instances(sets, 4000, options.growth, options.seed)
        self._run = str((state or {}).get("run") or f"{options.name}-{uuid4().hex[:8]}")
        self._position = int((state or {}).get("position", 0))
        self._doors, self._lock = cycle(doors), threading.Lock()
        self._encoder = PromptEncoder(load_tokenizer(TOKENIZER), at=datetime.now(UTC))
        self._members = note_task.options(options.uses("elastic"))
        answer = {"answer": {"type": "string", "description": "The answer."}}
        finish = FinishTool(description="Give the answer, and end.", parameters=answer)
        self._tools = [BashTool().schema, finish.schema]

    def batch(self) -> RolloutBatch | None:
        """Return the next batch; None after the last prompt."""
        while self._position < len(self._instances):
            if (found := self._sampled()) is not None:
                return found
        return None

    def _sampled(self) -> RolloutBatch | None:
        """Sample prompts until enough groups have rewards that differ, or `_TRIED` times; None where no group has."""
        options, judged = self._options, []
        kept: list[tuple[str, list[OwnRollout]]] = []
        wasted = 0
        for _ in range(_TRIED):
            missing = options.prompts - len(kept)
            chosen = self._instances[self._position : self._position + missing]
            if not missing or not chosen:
                break
            for name, group in self._groups(chosen):
                judged += [each.reward for each in group]
                if len({each.reward for each in group}) > 1:
                    kept.append((name, group))
                else:
                    wasted += 1
        rollouts = [(name, each) for name, group in kept for each in group]
        if not rollouts:
            return None
        rows = [each.row for _, each in rollouts]
        facts = [
            RowFacts(each.name, name, each.reward, len(each.tokens), sum(each.mask)) for name, each in rollouts
        ]  # fmt: skip
        lengths = [row.length for row in facts]
        figures = {
            "reward": round(statistics.fmean(judged), 4), "wasted": round(wasted / (wasted + len(kept)), 3),
            "turns": round(statistics.fmean(each.turns for _, each in rollouts), 3),
            "context": round(statistics.fmean(lengths)), "longest": max(lengths), "sampled": sum(row.sampled for row in facts),
        }  # fmt: skip
        names = [name for name, _ in kept]
        return RolloutBatch(facts, names, [], block_of(range(len(rows)), rows), figures=figures)

    def state(self) -> Mapping[str, Any]:
        """Return the position."""
        return {"run": self._run, "position": self._position}

    def acknowledge(self, rollouts: Sequence[str]) -> None:
        """Do nothing: no tokens are stored."""

    def close(self) -> None:
        """Do nothing: nothing is left between batches."""

    def _groups(self, chosen: Sequence[dict[str, Any]]) -> list[tuple[str, list[OwnRollout]]]:
        first, self._position = self._position, self._position + len(chosen)
        samples = self._options.samples
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            found = [
                [threads.submit(self._rollout, f"{self._run}.{first + place}", instance) for _ in range(samples)]
                for place, instance in enumerate(chosen)
            ]  # fmt: skip
            return [(f"{self._run}.{first + place}", [each.result() for each in group]) for place, group in enumerate(found)]  # fmt: skip

    def _rollout(self, group: str, instance: Mapping[str, Any]) -> OwnRollout:
        """Run one agent to its end, and its test cases."""
        name = f"{group}-{uuid4().hex[:8]}"
        found = OwnRollout(name)
        opening = [
            {"role": "system", "content": self._members["system_prompt"]},
            {"role": "user", "content": instance["data"]["question"]},
        ]
        limits = LoopLimits(max_iterations=self._members["max_iterations"])
        loop = AgentLoop(opening, AgentTools(frozenset({"bash"}), ("finish",)), limits)
        fields = {"environment": instance["environment"], "metadata": {"group": group}}
        answer: Mapping[str, Any] = {}
        with self._client.trajectory(name, task=self._options.name, **fields) as trajectory:
            while not isinstance(step := loop.step, LoopEnded):
                if isinstance(step, AskModel):
                    if not self._ask(found, loop, step.messages):
                        break
                    continue
                said = [
                    trajectory.exec(["bash", "-c", str(call.arguments.get("command", ""))], cpu=1).stdout or ""
                    for call in step.calls
                ]  # fmt: skip
                loop.observed([each.rstrip("\n") for each in said])
            else:
                answer = step.result
            program = last_program(str(answer.get("answer", "")))
            found.reward = self._judged(trajectory, program, instance) if program.strip() else 0.0
        return found

    def _ask(
        self, found: OwnRollout, loop: AgentLoop, messages: Sequence[Mapping[str, Any]]
    ) -> bool:
        """Sample one answer; return whether there was room for it."""
        with self._lock:
            address, headers = next(self._doors)
            if found.turns == 0:
                ids = self._encoder.opening(messages, self._tools)
            else:
                ids = self._encoder.continuation(found.sampled, found.answer, messages)
        found.add(ids, [0.0] * len(ids), 0)
        if len(found.tokens) >= note_task.CONTEXT:
            loop.overflowed()
            return False
        body = {
            "prompt": found.tokens, "max_tokens": note_task.MAX_TOKENS, "temperature": 1.0, "logprobs": 1,
            "return_token_ids": True, "model": self._options.name,
        }  # fmt: skip
        request = Request(f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json", "X-Tangram-Trajectory": found.name, **headers})  # fmt: skip
        try:
            with urlopen(request, timeout=_ANSWER_SECONDS) as response:
                choice = json.load(response)["choices"][0]
        except HTTPError as refused:
            refused.close()
            if refused.code != _NO_MEMORY:
                raise
            loop.overflowed()  # the engine lacks the memory for this batch
            return False
        found.sampled = choice["token_ids"]
        found.add(found.sampled, choice["logprobs"]["token_logprobs"], 1)
        text = self._encoder.tokenizer.response_text(found.sampled)
        read = read_response(text, turn=found.turns)
        found.answer, found.turns = read.message, found.turns + 1
        loop.answered(read.message, problem=read.problem, cut=choice["finish_reason"] == "length")
        return True

    def _judged(self, trajectory: Trajectory, program: str, instance: Mapping[str, Any]) -> float:
        """Return 1 when all test cases are right."""
        tests = instance["data"]["tests"]
        trajectory.put(_RUNNER, source("run_cases"))
        order = {"program": program, "function": "", "cases": [each["input"] for each in tests], "seconds": _CASE_SECONDS, "most_bytes": 10_000}  # fmt: skip
        cores = [each for each in self._members["test_cores"] if each <= len(tests)]
        ran = trajectory.exec(
            ["python3", "-I", _RUNNER, "{units}"], cpu=cores, key="cpu", malleable=len(cores) > 1, stdin=json.dumps(order)
        )  # fmt: skip
        lines = [json.loads(line) for line in (ran.stdout or "").splitlines() if line.startswith("{")]  # fmt: skip
        answers = {each["case"]: each.get("answer") for each in lines if "case" in each}
        return float(all(str(answers.get(place, "")).strip() == each["output"].strip() for place, each in enumerate(tests)))  # fmt: skip


class OwnRollout:
    """One rollout as far as it has come."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reward = 0.0
        self.turns = 0
        self.tokens: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] = []
        #: Of the latest answer.
        self.sampled: list[int] = []
        self.answer: dict[str, Any] = {}

    @property
    def row(self) -> dict[str, Sequence[float]]:
        """Its tokens, as a batch has them."""
        return {"tokens": self.tokens, "mask": self.mask, "logprobs": self.logprobs}

    def add(self, ids: Sequence[int], logprobs: Sequence[float], mask: int) -> None:
        """Append tokens."""
        self.tokens += ids
        self.logprobs += logprobs
        self.mask += [mask] * len(ids)
