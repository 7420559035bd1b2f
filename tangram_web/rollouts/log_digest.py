"""Digest of a rollout's log: what its page shows of records that may have any size. Pure.

`LogDigest.add` takes the records in their order, one at a time, and keeps facts of all turns, but texts of one window of
turns alone. So the size of a digest depends on the window, not on the log.

Rules
1. Turns, calls and artefacts are those of the last generation; an environment that was lost took the others with it, and an
   evaluation that was lost those of EVAL.
2. A call belongs to the stage that its key names: those of RUN follow the turn after which they were stored.
3. A text is cut in its middle, and says how much is left out. The whole record is a file (`rollouts:record`).
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from domain.rollouts import STAGES, Stage, StageTimes
from rollout.core import records
from rollout.core.records import StageMark
from rollout.ports import Record
from tangram_web.rollouts.verdicts import TESTS, VerdictOfTests, verdict_of_tests

#: Turns of one page.
TURNS: Final = 20
#: Calls shown after one turn, and of INIT or EVAL.
CALLS_OF_TURN: Final = 12
CALLS_OF_STAGE: Final = 100
#: Messages shown before one response.
ASKED: Final = 8
#: Characters shown of a message, of the arguments of a call, of each stream of an action, and of a value.
MESSAGE: Final = 6000
ARGUMENTS: Final = 1500
OUTPUT: Final = 2000
VALUE: Final = 4000
#: Log-probabilities are averaged over so many parts of a response at most.
SHADES: Final = 48
#: Bytes of a patch that are kept for its preview, those of another text, and artefacts that have one.
PREVIEW_BYTES: Final = 256 * 1024
TEXT_BYTES: Final = 8 * 1024
PREVIEWS: Final = 8
#: Artefacts that are listed, and members of what the handler added to the result.
ARTEFACTS: Final = 200
DETAILS: Final = 50
#: Characters of an error's traceback, and of any other line.
TRACEBACK: Final = 20_000
LINE: Final = 500
#: Members of the request that are shown.
REQUESTED: Final = ("instance", "sampling", "environment", "options")
#: Members of a result that are no answer of the command.
_BOOKKEEPING: Final = frozenset(
    {"truncated", "used", "stdout_bytes", "stderr_bytes", "session", "matched", "command_number"}
)


class Excerpt(NamedTuple):
    """A text, or its beginning and its end."""

    text: str
    #: Characters that are left out between ``text`` and ``end``; 0: ``text`` is all of it.
    left_out: int = 0
    end: str = ""


NO_TEXT: Final = Excerpt("")


def excerpt(value: object, limit: int) -> Excerpt:
    """Return at most about ``limit`` characters of a text; of another value, of its JSON."""
    text = value if isinstance(value, str) else _json(value)
    if len(text) <= limit:
        return Excerpt(text)
    tail = limit // 4
    return Excerpt(text[: limit - tail], len(text) - limit, text[-tail:])


@dataclass
class CallShown:
    """A call of a stage: its action, and how it ended."""

    key: str
    name: str
    stage: str
    kind: str
    #: Command, or the target of a request.
    does: Excerpt
    trajectory: str
    #: Number of its record.
    record: int
    #: Id of its action; empty while it is pending.
    action: str = ""
    outcome: str = ""
    exit_code: int | None = None
    reward: float | None = None
    detail: str = ""
    queue_seconds: float | None = None
    execution_seconds: float | None = None
    output: Excerpt = NO_TEXT
    errors: Excerpt = NO_TEXT
    #: Number of the record with the end.
    ended: int | None = None


@dataclass
class TurnFacts:
    """Numbers of one turn."""

    number: int
    context: int
    sampled: int
    version: int
    #: Number of the turn that it continues; None: a segment begins.
    follows: int | None = None


class AskedMessage(NamedTuple):
    """A message that was added before a response."""

    role: str
    text: Excerpt


class WrittenCall(NamedTuple):
    """A call of a tool, as the model wrote it."""

    name: str
    arguments: Excerpt


@dataclass
class TurnShown(TurnFacts):
    """One turn of the window."""

    backend: str = ""
    finish: str = ""
    attempt: int = 0
    #: Active time of its stage at its end.
    at_seconds: float | None = None
    record: int = 0
    #: Messages that its context encodes, and those that are not shown; a log of an earlier version has none.
    asked: list[AskedMessage] = field(default_factory=list)
    more_asked: int = 0
    message: Excerpt = NO_TEXT
    reasoning: Excerpt = NO_TEXT
    tools: list[WrittenCall] = field(default_factory=list)
    calls: list[CallShown] = field(default_factory=list)
    #: Calls that are not shown.
    more_calls: int = 0
    #: Mean and least log-probability; None where the engine gave none.
    mean_logprob: float | None = None
    least_logprob: float | None = None
    #: Mean log-probability of each part of the response.
    shades: list[float] = field(default_factory=list)


class ArtefactShown(NamedTuple):
    """A file that a stage stored."""

    name: str
    size_bytes: int
    #: Its first bytes; None without a preview.
    preview: bytes | None
    #: Number of its record.
    record: int = 0
    #: Stage that stored it.
    stage: str = ""


class LostGeneration(NamedTuple):
    """An environment that was lost, with what it took."""

    reason: str
    turns: int


class _Clock:
    """Times of one stage."""

    def __init__(self) -> None:
        self.attempts: set[int] = set()
        self.queued = self.active = 0.0


class LogDigest:
    """What a log says, within bounds. ``first``: number of the window's first turn, counted from 0."""

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.records = 0
        #: What the trainer asked for, and what the handler added to the result.
        self.request: dict[str, Excerpt] = {}
        self.detail: dict[str, Excerpt] = {}
        self.lost: list[LostGeneration] = []
        #: Why EVAL began again.
        self.evaluations: list[str] = []
        #: ``type``, ``stage`` and ``traceback`` of an error of the handler.
        self.error: dict[str, str] = {}
        self._clocks = {stage: _Clock() for stage in STAGES}
        self._begin()

    def _begin(self) -> None:
        self.turns: list[TurnFacts] = []
        self.window: list[TurnShown] = []
        self.artefacts: dict[str, ArtefactShown] = {}
        self.more_artefacts = 0
        #: What the artefact ``tests`` says.
        self.tests: VerdictOfTests | None = None
        #: What INIT and RUN returned.
        self.values: dict[str, Excerpt] = {}
        #: Calls of INIT and EVAL, and those of RUN before its first turn.
        self.calls: dict[str, list[CallShown]] = {stage.value: [] for stage in STAGES}
        self.more_calls = {stage.value: 0 for stage in STAGES}
        #: Calls without an end, by key.
        self.pending: dict[str, CallShown] = {}

    @property
    def generation(self) -> int:
        """Counts the environments that were lost."""
        return len(self.lost)

    def times(self) -> tuple[StageTimes, ...]:
        """Return the times of the stages that began."""
        return tuple(
            StageTimes(stage, clock.queued, clock.active, len(clock.attempts))
            for stage, clock in self._clocks.items()
            if clock.attempts
        )

    def attempts(self) -> int:
        """Return the highest attempt that stored a record."""
        return max((max(clock.attempts, default=0) for clock in self._clocks.values()), default=0)

    def add(self, record: Record) -> None:
        """Take the next record. Members that it lacks, or that have another type, are left out."""
        number, header = self.records, record.header
        self.records += 1
        clock = self._note(header)
        match record.kind:
            case records.REQUEST:
                asked = {name: header[name] for name in REQUESTED if header.get(name)}
                self.request = {name: excerpt(value, VALUE) for name, value in asked.items()}
            case records.TURN:
                self._add_turn(number, record, clock)
            case records.CALL:
                self._add_call(number, header)
            case records.OBSERVATION:
                self._add_end(number, header)
            case records.ARTEFACT:
                self._add_artefact(number, record)
            case records.PREPARED | records.STAGE:
                self._add_value(header)
            case records.LOST:
                reason = str(header.get("reason", ""))[:LINE]
                self.lost.append(LostGeneration(reason, len(self.turns)))
                self._begin()
            case records.EVAL_AGAIN:
                self._evaluate_again(header)
            case records.RESULT:
                self._add_result(header)

    def _evaluate_again(self, header: Mapping[str, Any]) -> None:
        """Leave out what EVAL did, and what INIT did in an environment that is gone."""
        self.evaluations.append(str(header.get("reason", ""))[:LINE])
        dropped = records.dropped_by(records.EVAL_AGAIN, header)
        for stage in dropped:
            self.calls[stage], self.more_calls[stage] = [], 0
            self.values.pop(stage, None)
        pending = self.pending.items()
        self.pending = {key: call for key, call in pending if call.stage not in dropped}
        stored = self.artefacts.items()
        self.artefacts = {name: each for name, each in stored if each.stage not in dropped}
        if TESTS not in self.artefacts:
            self.tests = None

    def _note(self, header: Mapping[str, Any]) -> StageMark | None:
        """Take the time of a stage, where a record has it."""
        clock = _clock(header)
        if clock is not None:
            known = self._clocks[clock.stage]
            known.attempts.add(clock.attempt)
            known.queued, known.active = clock.queued_seconds, clock.active_seconds
        return clock

    def _add_value(self, header: Mapping[str, Any]) -> None:
        if header.get("value"):
            self.values[str(header.get("stage", ""))] = excerpt(header["value"], VALUE)

    def _add_result(self, header: Mapping[str, Any]) -> None:
        detail, error = _mapping(header.get("detail")), _mapping(header.get("error"))
        shown = itertools.islice(detail.items(), DETAILS)
        self.detail = {str(name)[:LINE]: excerpt(value, VALUE) for name, value in shown}
        members = {name: str(error.get(name) or "") for name in ("type", "stage", "traceback")}
        self.error = {name: text[:TRACEBACK] for name, text in members.items() if text}

    def _add_turn(self, number: int, record: Record, clock: StageMark | None) -> None:
        header, extra = record.header, _mapping(record.header.get("extra"))
        turn = TurnShown(
            number=len(self.turns),
            context=_count(header.get("prompt_tokens")),
            sampled=_count(header.get("response_tokens")),
            version=_count(header.get("weights_version")),
            follows=extra.get("follows") if isinstance(extra.get("follows"), int) else None,
        )
        self.turns.append(
            TurnFacts(turn.number, turn.context, turn.sampled, turn.version, turn.follows)
        )
        if not self.first <= turn.number < self.first + TURNS:
            return
        turn.record, turn.backend = number, str(header.get("backend", ""))
        turn.finish = str(extra.get("finish", ""))
        if clock is not None:
            turn.attempt, turn.at_seconds = clock.attempt, clock.active_seconds
        message = _mapping(header.get("message"))
        turn.message = excerpt(message.get("content") or "", MESSAGE)
        turn.reasoning = excerpt(message.get("reasoning_content") or "", MESSAGE)
        turn.tools = _tools(message.get("tool_calls"))
        asked = header.get("asked")
        if isinstance(asked, list):
            turn.asked = [_asked(_mapping(each)) for each in asked[:ASKED]]
            turn.more_asked = max(0, len(asked) - ASKED)
        _shade(turn, record.arrays.get("logprobs", b""))
        self.window.append(turn)

    def _add_call(self, number: int, header: Mapping[str, Any]) -> None:
        call = _call(number, header)
        shown = self._calls_beside(call.stage)
        if shown is None:
            return
        most = CALLS_OF_STAGE if shown is self.calls.get(call.stage) else CALLS_OF_TURN
        if len(shown) < most:
            shown.append(call)
            self.pending[call.key] = call
        elif shown is self.calls.get(call.stage):
            self.more_calls[call.stage] = self.more_calls.get(call.stage, 0) + 1
        else:
            self.window[-1].more_calls += 1

    def _calls_beside(self, stage: str) -> list[CallShown] | None:
        """Return the list that the next call of a stage joins; None: its turn is not in the window."""
        if stage != Stage.RUN or not self.turns:
            return self.calls.setdefault(stage, [])
        last = self.turns[-1].number
        return self.window[-1].calls if self.window and self.window[-1].number == last else None

    def _add_end(self, number: int, header: Mapping[str, Any]) -> None:
        call = self.pending.pop(str(header.get("key", "")), None)
        if call is None:
            return
        end = _mapping(header.get("end"))
        result = _mapping(end.get("result"))
        call.ended = number
        call.action, call.outcome = str(end.get("id", "")), str(end.get("outcome", ""))
        call.detail = str(end.get("detail") or "")[:LINE]
        call.reward = _number(end.get("reward"))
        call.queue_seconds = _number(end.get("queue_seconds"))
        call.execution_seconds = _number(end.get("execution_seconds"))
        code = result.pop("exit_code", None)
        call.exit_code = code if isinstance(code, int) else None
        call.output = excerpt(result.pop("stdout", ""), OUTPUT)
        call.errors = excerpt(result.pop("stderr", ""), OUTPUT)
        said = {name: value for name, value in result.items() if name not in _BOOKKEEPING}
        if said and not call.output.text:
            call.output = excerpt(said, OUTPUT)

    def _add_artefact(self, number: int, record: Record) -> None:
        name = str(record.header.get("name", ""))
        if name not in self.artefacts and len(self.artefacts) >= ARTEFACTS:
            self.more_artefacts += 1
            return
        content = record.arrays.get("content", b"")
        previews = sum(each.preview is not None for each in self.artefacts.values())
        size = _preview_bytes(name, content) if previews < PREVIEWS else 0
        preview = content[:size] if size else None
        self.artefacts[name] = ArtefactShown(
            name, len(content), preview, number, records.stored_in(record.header)
        )
        if name == TESTS:
            self.tests = verdict_of_tests(content)


def is_patch(name: str, content: bytes) -> bool:
    """Say whether an artefact is shown as a patch."""
    begins = content[:64].lstrip()
    return name.endswith((".patch", ".diff")) or begins.startswith((b"diff --git", b"--- "))


def _preview_bytes(name: str, content: bytes) -> int:
    """Return how much of an artefact is kept; 0 of one that is no text."""
    if is_patch(name, content):
        return PREVIEW_BYTES
    return 0 if b"\0" in content[:TEXT_BYTES] else TEXT_BYTES


def _call(number: int, header: Mapping[str, Any]) -> CallShown:
    key, members = str(header.get("key", "")), _mapping(header.get("members"))
    parts = key.split("/", 3)
    kind = str(members.get("kind", "exec"))
    if kind == "call":
        asked = _mapping(members.get("call"))
        does: object = " ".join(str(asked.get(name, "")) for name in ("method", "target", "path"))
    else:
        command = _mapping(members.get("exec")).get("command", "")
        does = " ".join(map(str, command)) if isinstance(command, list) else command
    return CallShown(
        key=key,
        name=parts[3] if len(parts) > 3 else "",
        stage=parts[2] if len(parts) > 2 else "",
        kind=kind,
        does=excerpt(does, ARGUMENTS),
        trajectory=str(header.get("trajectory", "")),
        record=number,
    )


def _asked(message: Mapping[str, Any]) -> AskedMessage:
    return AskedMessage(str(message.get("role", "")), excerpt(message.get("content") or "", OUTPUT))


def _tools(calls: object) -> list[WrittenCall]:
    if not isinstance(calls, list):
        return []
    functions = [_mapping(_mapping(call).get("function")) for call in calls[:CALLS_OF_TURN]]
    return [
        WrittenCall(str(each.get("name", "")), excerpt(each.get("arguments", ""), ARGUMENTS))
        for each in functions
    ]


def _shade(turn: TurnShown, data: bytes) -> None:
    """Set what the log-probabilities of a turn show."""
    values = array("f")
    values.frombytes(data[: len(data) // 4 * 4])
    if not values:
        return
    turn.mean_logprob, turn.least_logprob = sum(values) / len(values), min(values)
    parts = min(SHADES, len(values))
    edges = [len(values) * part // parts for part in range(parts + 1)]
    turn.shades = [
        sum(values[begin:end]) / (end - begin) for begin, end in itertools.pairwise(edges)
    ]


def _clock(header: Mapping[str, Any]) -> StageMark | None:
    try:
        return msgspec.convert(header["clock"], StageMark)
    except (KeyError, msgspec.ValidationError):
        return None


def _mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError):
        return repr(value)
