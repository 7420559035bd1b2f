"""Profiles of a service: tokens per GPU and second, and memory, of each degree at context lengths × responses.

Pure: the caller makes the calls (`Probe`) and keeps the cells (`CellStore`). What runs in which order is decided here.

Rules
1. A cell is measured by calls of the service itself: for each copy of the degree one call on ``gpus`` GPUs, all at once, each a prompt of the
   context's length with its share of the responses. So it waits in line as any call does, has real chunks while it runs, and no longer.
2. A cell is one round of calls that is not counted, then rounds until there are `ProfilePlan.rounds` or its time is over. Its rate is the
   median of the rounds. Only decoding counts (EARL's TGS): the seconds that the engine tells, else those of a call less those of one
   with a single token.
3. A cell is stored before the next one begins. What is stored is not measured again: a profile that was killed continues where it was,
   and measures the cell again that it was at.
4. Out of memory is a result, and needs evidence: the engine's own answer, the kernel's count, or the last words of a server that could not be
   restored. A call that fails without it is repeated, then its cell is left open, with the reason, and asked for again by the next profile.
5. A degree that runs out of memory at a context and a number of responses does so at more of both, since keys and values only grow: such cells are
   stored as out of memory without a call (`implied`).
6. Cells are measured degree by degree, as each change of the degree restores the service, and within one from the least to the most tokens, so that
   the first one that lacks memory spares the others.
7. Before the first cell of a degree its copies get a chunk each: a service that is busy is restored onto one more chunk only when its queue is
   worth that, so more and more short calls are made at once until all copies have answered.
8. The seconds of a change from one degree to another are those of the restores on the way, evictions included; `ProfilePlan.switches`
   rounds over all degrees add to those that the cells met.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from statistics import mean, median
from typing import Any, Final, NamedTuple, Protocol

from domain.selectors import (
    Parallelism,
    ParallelismProfile,
    ProfileCell,
    ProfileIdentity,
    SelectorStage,
    SwitchCost,
)

#: What an error says that is evidence of a lack of memory.
_LACKS_MEMORY: Final = ("out of memory", "out_of_memory", "memoryerror", "oom_killed")
#: Attempts at a cell whose calls fail without evidence.
_ATTEMPTS: Final = 3
#: Calls for each copy, until all copies have a chunk (rule 7).
_SPREADING: Final = (1, 4, 16)
#: Tokens that the calls of a change of the degree ask for.
_FEW_TOKENS: Final = 2


class CellKey(NamedTuple):
    """A cell before it is measured."""

    parallelism: Parallelism
    context: int
    responses: int

    def __str__(self) -> str:
        """Return it as people read it."""
        return f"{self.parallelism}, {self.context} tokens × {self.responses} responses"


class ProfilePlan(NamedTuple):
    """What is to be measured."""

    degrees: Sequence[Parallelism]
    contexts: Sequence[int]
    responses: Sequence[int]
    #: Counted rounds of a cell.
    rounds: int = 3
    #: After so long a cell begins no further round, in seconds; a call of it ends as timeout at ten times that.
    cell_seconds: float = 30.0
    #: Tokens of a response that are decoded.
    tokens: int = 16
    #: Rounds over the degrees that only measure changes.
    switches: int = 2
    stage: SelectorStage = SelectorStage.ROLLOUT


class CallAnswer(NamedTuple):
    """What became of one call."""

    #: HTTP status; 0: there was no answer.
    status: int
    #: The parsed JSON, else None.
    body: Any = None
    #: Of the call alone, without queue and restore.
    seconds: float = 0.0
    #: None: the service was on its chunk already.
    restore_seconds: float | None = None
    #: Where it ran.
    chunk: str = ""
    #: What is said of a call that failed.
    detail: str = ""


class Probe(Protocol):
    """Makes calls of the service."""

    async def call(self, gpus: int, body: Mapping[str, Any], seconds: float) -> CallAnswer:
        """Post a completion to an instance on ``gpus`` GPUs; ``seconds``: limit of the call, not of its queue."""


class CellStore(Protocol):
    """Keeps what was measured; what it has taken outlives this process."""

    async def known(self) -> ParallelismProfile | None:
        """Return what is kept."""

    async def put(self, change: ParallelismProfile) -> None:
        """Keep cells or costs; return once they are durable."""


class CellReport(NamedTuple):
    """A cell that was dealt with."""

    key: CellKey
    #: None: it was left open.
    cell: ProfileCell | None
    #: Evidence of a lack of memory, or why the cell was left open.
    why: str = ""
    #: It follows from a smaller cell that lacked memory.
    implied: bool = False
    #: Copies that had a chunk of their own.
    copies: int = 0


def order(plan: ProfilePlan) -> Iterator[CellKey]:
    """Yield all cells of a plan in the order in which they are measured (rule 6)."""
    sizes = [(context, responses) for context in plan.contexts for responses in plan.responses]
    sizes.sort(key=lambda size: (size[0] * size[1], size))
    for degree in plan.degrees:
        # Copies share the responses: with fewer responses than copies some would have none.
        yield from (CellKey(degree, *size) for size in sizes if size[1] >= degree.dp)


def implied_by(
    key: CellKey, cells: Iterable[ProfileCell], stage: SelectorStage
) -> ProfileCell | None:
    """Return a cell that lacked memory with no more context and responses at the same degree; None: there is none."""
    return next(
        (
            each
            for each in cells
            if each.oom
            and each.stage == stage
            and each.parallelism == key.parallelism
            and each.context <= key.context
            and each.responses <= key.responses
        ),
        None,
    )


def next_cell(
    plan: ProfilePlan, cells: Iterable[ProfileCell], left: Iterable[CellKey] = ()
) -> CellKey | None:
    """Return the cell to deal with now; None: all of the plan are known, or ``left`` open."""
    known = {(each.stage, *_key(each)) for each in cells}
    open_cells = set(left)
    return next(
        (key for key in order(plan) if (plan.stage, *key) not in known and key not in open_cells),
        None,
    )


def _key(cell: ProfileCell) -> CellKey:
    return CellKey(cell.parallelism, cell.context, cell.responses)


def shares(responses: int, copies: int) -> list[int]:
    """Return the responses of each copy."""
    least, more = divmod(responses, copies)
    return [least + (n < more) for n in range(copies)]


def request(context: int, rows: int, tokens: int) -> dict[str, Any]:
    """Return a completion whose responses end at ``context`` tokens, prompt included."""
    length = max(1, context - tokens)
    # Ids that any vocabulary has, none of which ends a text; rows differ by their seeds.
    prompt = [16 + n % 64 for n in range(length)]
    return {"prompt": prompt, "n": rows, "max_tokens": tokens, "min_tokens": tokens,
            "ignore_eos": True, "temperature": 1.0, "seed": 0}  # fmt: skip


def lacks_memory(answer: CallAnswer) -> str:
    """Return the evidence that a call ended for lack of memory; empty: there is none (rule 4)."""
    if 200 <= answer.status < 300:
        return ""
    said = answer.detail
    if answer.status == 507 or answer.status >= 500:
        said = f"{json.dumps(answer.body) if answer.body is not None else ''} {said}"
    elif answer.status:
        return ""
    if not any(word in said.lower() for word in _LACKS_MEMORY):
        return ""
    body = answer.body if isinstance(answer.body, dict) else {}
    return str(body.get("evidence") or body.get("detail") or answer.detail or said)[:500]


class _Round(NamedTuple):
    """One round of calls."""

    answers: Sequence[CallAnswer]
    tokens_per_gpu_second: float
    peak_memory_bytes: int | None

    @property
    def seconds(self) -> float:
        return max(each.seconds for each in self.answers)


class _Failed(Exception):
    """A call failed without evidence of a lack of memory."""


class _LackedMemory(Exception):
    """A call failed for lack of memory; the words are the evidence."""


class Profiler:
    """Measures the cells of one plan."""

    def __init__(
        self,
        plan: ProfilePlan,
        identity: ProfileIdentity,
        probe: Probe,
        cells: CellStore,
        gather: Callable[..., Awaitable[Sequence[CallAnswer]]],
        now: Callable[[], float],
        source: str = "measured",
    ) -> None:
        """``gather`` runs calls at once, as asyncio's; ``now``: monotonic seconds."""
        self._plan, self._identity, self._source = plan, identity, source
        self._probe, self._cells, self._gather, self._now = probe, cells, gather, now
        self._known: list[ProfileCell] = []
        self._left: list[CellKey] = []
        #: Seconds of restores by former and new degree.
        self._restores: dict[tuple[Parallelism, Parallelism], list[float]] = {}
        self._former: Parallelism | None = None
        #: The degree whose copies have chunks.
        self._spread_out: Parallelism | None = None

    async def run(self, report: Callable[[CellReport], None]) -> list[SwitchCost]:
        """Measure what is not known; ``report`` is called for each cell. Return the costs of changes that were met."""
        known = await self._cells.known()
        self._known = list(known.cells) if known is not None else []
        while (key := next_cell(self._plan, self._known, self._left)) is not None:
            found = await self._deal_with(key)
            if found.cell is None:
                self._left.append(key)
            else:
                await self._cells.put(self._change(cells=(found.cell,)))
                self._known.append(found.cell)
            report(found)
        return await self._switches(known)

    async def _deal_with(self, key: CellKey) -> CellReport:
        smaller = implied_by(key, self._known, self._plan.stage)
        if smaller is not None:
            why = f"{_key(smaller)} lacked memory"
            return CellReport(key, self._cell(key, oom=True), why, implied=True)
        why = ""
        for _ in range(_ATTEMPTS):
            try:
                return await self._measured(key)
            except _LackedMemory as error:
                return CellReport(key, self._cell(key, oom=True), str(error))
            except _Failed as error:
                why = str(error)
        return CellReport(key, None, why)

    async def _spread(self, degree: Parallelism) -> None:
        """Let each copy of a degree have a chunk of its own, as far as there are chunks (rule 7)."""
        if degree == self._spread_out:
            return
        for calls in _SPREADING if degree.dp > 1 else ():
            answers = await self._called(
                degree, self._plan.contexts[0], [1] * degree.dp * calls, self._plan.tokens
            )
            if len({each.chunk for each in answers}) >= degree.dp:
                break
        self._spread_out = degree

    async def _measured(self, key: CellKey) -> CellReport:
        await self._spread(key.parallelism)
        began = self._now()
        found = await self._round(key)
        counted: list[_Round] = []
        while len(counted) < self._plan.rounds:
            spent = self._now() - began
            if spent + found.seconds > self._plan.cell_seconds:
                break
            found = await self._round(key)
            counted.append(found)
        # A round that takes longer than a cell may is all there is.
        counted = counted or [found]
        rates = [each.tokens_per_gpu_second for each in counted]
        peaks = [each.peak_memory_bytes for each in counted if each.peak_memory_bytes is not None]
        cell = ProfileCell(
            key.parallelism,
            key.context,
            key.responses,
            self._plan.stage,
            tokens_per_gpu_second=median(rates),
            peak_memory_bytes=max(peaks, default=None),
            low=min(rates) if len(rates) > 1 else None,
            high=max(rates) if len(rates) > 1 else None,
        )
        chunks = {each.chunk for each in counted[-1].answers}
        return CellReport(key, cell, copies=len(chunks))

    async def _round(self, key: CellKey) -> _Round:
        parts = shares(key.responses, key.parallelism.dp)
        gpus = key.parallelism.instance_gpus
        answers = await self._called(key.parallelism, key.context, parts, self._plan.tokens)
        rows = list(zip(answers, parts, strict=True))
        if all(_decoding(each) is not None for each in answers):
            seconds = [_decoding(each) or 0.0 for each in answers]
        else:
            short = await self._called(key.parallelism, key.context, parts, 1)
            seconds = [
                max(1e-6, each.seconds - other.seconds)
                for each, other in zip(answers, short, strict=True)
            ]
        # The first token of a response is of its prompt's computation.
        rates = [
            part * (self._plan.tokens - 1) / (took * gpus)
            for (_, part), took in zip(rows, seconds, strict=True)
        ]
        peaks = [_member(each, "peak_memory_bytes") for each in answers]
        known = [int(each) for each in peaks if each is not None]
        return _Round(answers, mean(rates), max(known, default=None))

    async def _called(
        self, degree: Parallelism, context: int, parts: Sequence[int], tokens: int
    ) -> Sequence[CallAnswer]:
        limit = 10 * self._plan.cell_seconds
        answers = await self._gather(
            *(
                self._probe.call(degree.instance_gpus, request(context, part, tokens), limit)
                for part in parts
            )
        )
        restores = [each.restore_seconds for each in answers if each.restore_seconds is not None]
        if restores and self._former not in (None, degree):
            assert self._former is not None, "checked"
            self._restores.setdefault((self._former, degree), []).append(max(restores))
        self._former = degree
        for answer in answers:
            if evidence := lacks_memory(answer):
                raise _LackedMemory(evidence)
        for answer in answers:
            if not 200 <= answer.status < 300:
                said = answer.detail or json.dumps(answer.body)[:300]
                raise _Failed(f"status {answer.status}: {said}" if answer.status else said)
        return answers

    async def _switches(self, known: ParallelismProfile | None) -> list[SwitchCost]:
        """Go over the degrees at the smallest cell, keep what changes cost, and return it."""
        degrees = [each for each in self._plan.degrees if self._works(each)]
        pairs = {(a, b) for a in degrees for b in degrees if a != b}
        costs = known.switches if known is not None else ()
        if pairs - {(each.origin, each.to) for each in costs}:
            for degree in [*degrees * self._plan.switches, *degrees[:1]]:
                try:
                    await self._called(degree, self._plan.contexts[0], [1] * degree.dp, _FEW_TOKENS)
                except (_Failed, _LackedMemory):
                    self._former = None
        found = [
            SwitchCost(to, median(seconds), origin)
            for (origin, to), seconds in sorted(self._restores.items())
        ]
        if found:
            await self._cells.put(self._change(switches=tuple(found)))
        return found

    def _works(self, degree: Parallelism) -> bool:
        """Say whether a degree has a cell that did not lack memory."""
        return any(each.parallelism == degree and not each.oom for each in self._known)

    def _cell(self, key: CellKey, *, oom: bool) -> ProfileCell:
        return ProfileCell(key.parallelism, key.context, key.responses, self._plan.stage, oom=oom)

    def _change(
        self, cells: tuple[ProfileCell, ...] = (), switches: tuple[SwitchCost, ...] = ()
    ) -> ParallelismProfile:
        return ParallelismProfile(self._identity, cells, switches, self._source)


def _decoding(answer: CallAnswer) -> float | None:
    """Return the seconds of decoding that the engine tells."""
    found = _member(answer, "decode_seconds")
    return found if found is not None and found > 0 else None


def _member(answer: CallAnswer, name: str) -> float | None:
    took = answer.body.get("tangram") if isinstance(answer.body, dict) else None
    found = took.get(name) if isinstance(took, dict) else None
    return float(found) if isinstance(found, (int, float)) else None
