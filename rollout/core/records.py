"""Records of a rollout's log, and the facts that a log states.

| kind | stored | header |
|---|---|---|
| `request` | by the gateway, as record 0 | ``instance``, ``sampling``, ``environment``, ``options`` |
| `prepared` | when INIT has ended | ``value``: what the handler returned |
| `turn` | after each sampling, before its tools | ``message``, ``weights_version``, ``backend``, ``prompt_tokens``, ``response_tokens`` |
| `call` | before its action is submitted | ``key``, ``digest``, ``trajectory``, ``members`` |
| `observation` | when the action has ended | ``key``, ``end`` |
| `artefact` | by a stage | ``name``, ``facts``; the content is array ``content`` |
| `stage` | when RUN has ended | ``value`` |
| `lost` | when the environment is gone before RUN has ended | ``reason`` |
| `eval_again` | when EVAL begins again alone | ``reason``, ``prepared`` |
| `result` | at the end, once | ``result``, ``detail``, ``error`` |

Rules
1. Each record that a worker stores has the member ``clock``: stage, attempt, seconds queued and active so far. A
   successor goes on counting from the last one, so no number of crashes extends a limit.
2. A *generation* is one preparation of the environment. `lost` ends it: turns, calls and artefacts of earlier
   generations are not part of the rollout any more, their times are.
   `eval_again` ends one *evaluation*: what EVAL stored is not part of the rollout any more, what RUN stored is. Where the prepared
   environment is gone as well (``prepared`` is false), a new generation begins with INIT, and EVAL follows it.
3. A call is stored before its action is submitted, with the members as they are submitted: a successor repeats the
   same request under the same key, which is the same action.
4. Unknown kinds and members are ignored: a log may be of a later version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from domain.rollouts import STAGES, RolloutResult, Stage, StageTimes
from rollout.ports import ActionEnd, Record

REQUEST: Final = "request"
PREPARED: Final = "prepared"
TURN: Final = "turn"
CALL: Final = "call"
OBSERVATION: Final = "observation"
ARTEFACT: Final = "artefact"
STAGE: Final = "stage"
LOST: Final = "lost"
EVAL_AGAIN: Final = "eval_again"
RESULT: Final = "result"
EVERY_STAGE: Final = frozenset(stage.value for stage in STAGES)
#: Kinds that a handler sees again when its stage continues.
_HISTORY: Final = frozenset({PREPARED, TURN, CALL, OBSERVATION, ARTEFACT, STAGE})


class RolloutRequest(msgspec.Struct, frozen=True):
    """What the trainer asked for."""

    #: The problem, as the handler knows it.
    instance: dict[str, Any] = {}
    #: Sampling parameters.
    sampling: dict[str, Any] = {}
    #: Environment of the instance, as in ``POST /trajectories``; None: the rollout has none.
    environment: dict[str, Any] | None = None
    #: Options of the handler.
    options: dict[str, Any] = {}


class StageMark(msgspec.Struct, frozen=True, array_like=True):
    """Time of a stage when a record was stored."""

    stage: Stage
    attempt: int
    queued_seconds: float
    active_seconds: float
    #: Lease under which it ran.
    lease: str = ""


class StoredCall(msgspec.Struct):
    """A call of a stage: its action, and how it ended."""

    key: str
    digest: str
    trajectory: str
    members: dict[str, Any]
    end: ActionEnd | None = None


@dataclass
class _StageFacts:
    """Time of one stage, over all generations."""

    queued_seconds: float = 0.0
    active_seconds: float = 0.0
    attempts: set[int] = field(default_factory=set)
    lease: str = ""


@dataclass
class Facts:
    """What a log states. `add` takes each record in its order."""

    #: Number of the next record.
    records: int = 0
    request: RolloutRequest = field(default_factory=RolloutRequest)
    #: Counts the environments that were lost.
    generation: int = 0
    #: Generation of each evaluation that was given up.
    evaluations: list[int] = field(default_factory=list)
    prepared: bool = False
    ran: bool = False
    result: RolloutResult | None = None
    turns: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    #: Of the first and the last turn.
    weights_versions: tuple[int, int] | None = None
    #: By key, of this generation.
    calls: dict[str, StoredCall] = field(default_factory=dict)
    #: Records of this generation that handlers see.
    history: list[Record] = field(default_factory=list)
    _stages: dict[Stage, _StageFacts] = field(
        default_factory=lambda: {stage: _StageFacts() for stage in STAGES}
    )

    @classmethod
    def of(cls, records: Iterable[Record]) -> Facts:
        """Return the facts of a whole log."""
        facts = cls()
        for record in records:
            facts.add(record)
        return facts

    @property
    def stage(self) -> Stage:
        """The stage that the rollout is in."""
        if not self.prepared:
            return Stage.INIT
        return Stage.EVAL if self.ran else Stage.RUN

    @property
    def evaluation(self) -> int:
        """Counts the evaluations that were given up."""
        return len(self.evaluations)

    def active_seconds(self) -> dict[Stage, float]:
        """Return the time that each stage has used."""
        return {stage: facts.active_seconds for stage, facts in self._stages.items()}

    def queued_seconds(self, stage: Stage, lease: str, waited_seconds: float) -> float:
        """Return how long a stage waited for its leases, with this one, which counts once."""
        facts = self._stages[stage]
        new = not lease or lease != facts.lease
        return facts.queued_seconds + (waited_seconds if new else 0.0)

    def clock(self, stage: Stage, attempt: int) -> StageMark:
        """Return the time of a stage as it was noted last."""
        facts = self._stages[stage]
        return StageMark(stage, attempt, facts.queued_seconds, facts.active_seconds, facts.lease)

    def times(self) -> tuple[StageTimes, ...]:
        """Return the times of the stages that began."""
        return tuple(
            StageTimes(stage, facts.queued_seconds, facts.active_seconds, len(facts.attempts))
            for stage, facts in self._stages.items()
            if facts.attempts
        )

    def note(self, clock: StageMark) -> None:
        """Take the time of a stage."""
        facts = self._stages[clock.stage]
        facts.attempts.add(clock.attempt)
        facts.queued_seconds = clock.queued_seconds
        facts.active_seconds = clock.active_seconds
        facts.lease = clock.lease

    def add(self, record: Record) -> None:
        """Take the next record."""
        self.records += 1
        header = record.header
        if (clock := header.get("clock")) is not None:
            self.note(msgspec.convert(clock, StageMark))
        if record.kind in _HISTORY:
            self.history.append(record)
        if (take := _TAKES.get(record.kind)) is not None:
            take(self, header)

    def _add_request(self, header: Mapping[str, Any]) -> None:
        self.request = msgspec.convert(header, RolloutRequest)

    def _add_prepared(self, _: Mapping[str, Any]) -> None:
        self.prepared = True

    def _add_run(self, _: Mapping[str, Any]) -> None:
        self.ran = True

    def _add_result(self, header: Mapping[str, Any]) -> None:
        self.result = msgspec.convert(header["result"], RolloutResult)

    def _add_observation(self, header: Mapping[str, Any]) -> None:
        if (call := self.calls.get(header["key"])) is not None:
            call.end = msgspec.convert(header["end"], ActionEnd)

    def _add_turn(self, header: Mapping[str, Any]) -> None:
        self.turns += 1
        self.prompt_tokens += int(header.get("prompt_tokens", 0))
        self.response_tokens += int(header.get("response_tokens", 0))
        version = int(header.get("weights_version", 0))
        first = version if self.weights_versions is None else self.weights_versions[0]
        self.weights_versions = (first, version)

    def _add_call(self, header: Mapping[str, Any]) -> None:
        call = StoredCall(
            header["key"], header["digest"], header["trajectory"], dict(header["members"])
        )
        self.calls[call.key] = call

    def _evaluate_again(self, header: Mapping[str, Any]) -> None:
        dropped = dropped_by(EVAL_AGAIN, header)
        self.evaluations.append(self.generation)
        self.history = [each for each in self.history if stored_in(each.header) not in dropped]
        kept = {key: call for key, call in self.calls.items() if stage_of(key) not in dropped}
        self.calls = kept
        if Stage.INIT in dropped:
            self.generation += 1
            self.prepared = False

    def _lose(self, _: Mapping[str, Any]) -> None:
        self.generation += 1
        self.prepared = self.ran = False
        self.turns = self.prompt_tokens = self.response_tokens = 0
        self.weights_versions = None
        self.calls.clear()
        self.history.clear()


_TAKES: Final[dict[str, Callable[[Facts, Mapping[str, Any]], None]]] = {
    REQUEST: Facts._add_request,
    PREPARED: Facts._add_prepared,
    TURN: Facts._add_turn,
    CALL: Facts._add_call,
    OBSERVATION: Facts._add_observation,
    STAGE: Facts._add_run,
    LOST: Facts._lose,
    EVAL_AGAIN: Facts._evaluate_again,
    RESULT: Facts._add_result,
}


def stage_of(key: str) -> str:
    """Return the stage that the key of a call names (`rollout.core.calls.call_key`)."""
    return key.split("/")[2]


def stored_in(header: Mapping[str, Any]) -> str:
    """Return the stage that stored a record; empty: none did, or it is unknown."""
    clock = header.get("clock")
    return str(clock[0]) if isinstance(clock, list | tuple) and clock else ""


def dropped_by(kind: str, header: Mapping[str, Any]) -> frozenset[str]:
    """Return the stages whose records are no part of the rollout any more after this one."""
    if kind == LOST:
        return EVERY_STAGE
    if kind == EVAL_AGAIN:
        again = {Stage.EVAL.value} | (set() if header.get("prepared") else {Stage.INIT.value})
        return frozenset(again)
    return frozenset()


def digest(members: Mapping[str, Any]) -> str:
    """Return the digest of what a handler asked for; equal for equal members in any order."""
    encoded = msgspec.json.encode(members, order="deterministic")
    return hashlib.blake2b(encoded, digest_size=12).hexdigest()
