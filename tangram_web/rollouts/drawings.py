"""Drawings of rollouts: times of stages, tokens of turns, rewards of a group, lines of patches. Pure; places are percentages.

Pages have no inline style, so drawings are SVG with attributes, and each has its numbers as text beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from domain.rollouts import RolloutOutcome, StageTimes
from tangram_web.records.models import RolloutRecord
from tangram_web.rollouts.log_digest import (
    TEXT_BYTES,
    ArtefactShown,
    TurnFacts,
    TurnShown,
    is_patch,
)

#: Parts of a strip: more turns are drawn together.
MOST_TURNS: Final = 200
#: Height of the bars of a group.
BAR_HEIGHT: Final = 28
#: Mean log-probabilities at which the shade of a token changes, from likely to unlikely.
SHADES: Final = (-0.1, -0.5, -1.0, -2.0)

#: Lines that are shown, and characters of one line.
LINES: Final = 1500
CHARACTERS: Final = 400
_FILE: Final = (
    "diff ",
    "index ",
    "--- ",
    "+++ ",
    "new file",
    "deleted file",
    "rename ",
    "similarity ",
)


class Part(NamedTuple):
    """A rectangle of a strip."""

    #: Class of its colour.
    name: str
    start: float
    width: float
    title: str = ""


class StageRow(NamedTuple):
    """Times of one part of a rollout, and their places in its life."""

    name: str
    queued_seconds: float
    active_seconds: float | None
    attempts: int | None
    parts: list[Part]


def stage_rows(record: RolloutRecord, times: Sequence[StageTimes], now: datetime) -> list[StageRow]:
    """Return the times of a rollout: before its first worker, then of each stage that began.

    Log and row have durations and no instants: parts follow each other without what is between them.
    """
    waited = (record.began_at or record.finished_at or now) - record.submitted_at
    first = max(0.0, waited.total_seconds())
    whole = first + sum(each.queued_seconds + each.active_seconds for each in times) or 1.0
    rows = [StageRow("worker", first, None, None, [_part("queue", 0.0, first, whole)])]
    at = first
    for each in times:
        queued = _part("queue", at, each.queued_seconds, whole)
        at += each.queued_seconds
        active = _part("execution", at, each.active_seconds, whole)
        at += each.active_seconds
        name = each.stage.upper()
        rows.append(
            StageRow(
                name, each.queued_seconds, each.active_seconds, each.attempts, [queued, active]
            )
        )
    return rows


def token_strip(turns: Sequence[TurnFacts]) -> list[Part]:
    """Return the tokens of all turns in their order: prompts, contexts between responses (mask 0), responses (mask 1)."""
    whole = sum(turn.context + turn.sampled for turn in turns)
    if not whole:
        return []
    step = -(-len(turns) // MOST_TURNS)
    parts: list[Part] = []
    at = 0
    for start in range(0, len(turns), step):
        some = turns[start : start + step]
        first, last = some[0].number, some[-1].number
        named = f"turn {first}" if first == last else f"turns {first} to {last}"
        context, sampled = (sum(getattr(t, n) for t in some) for n in ("context", "sampled"))
        kind = "prompt" if some[0].follows is None else "context"
        parts.append(_part(kind, at, context, whole, f"{named}: {context} tokens, mask 0"))
        parts.append(
            _part("sampled", at + context, sampled, whole, f"{named}: {sampled} sampled, mask 1")
        )
        at += context + sampled
    return [part for part in parts if part.width]


def turn_strip(turn: TurnShown) -> list[Part]:
    """Return the tokens of one turn: its context, then its response, shaded by log-probability where there is one."""
    whole = turn.context + turn.sampled
    if not whole:
        return []
    kind = "prompt" if turn.follows is None else "context"
    parts = [_part(kind, 0, turn.context, whole, f"{turn.context} tokens, mask 0")]
    if not turn.shades:
        title = f"{turn.sampled} sampled, mask 1"
        return [*parts, _part("sampled", turn.context, turn.sampled, whole, title)]
    each = turn.sampled / len(turn.shades)
    for number, mean in enumerate(turn.shades):
        shade = sum(mean < edge for edge in SHADES)
        place = turn.context + each * number
        title = f"sampled, mask 1, mean log-probability {mean:.2f}"
        parts.append(_part(f"sampled shade-{shade}", place, each, whole, title))
    return [part for part in parts if part.width]


class RewardBar(NamedTuple):
    """One sample of a group."""

    name: str
    start: float
    width: float
    top: float
    height: float
    title: str
    rollout: str


def reward_bars(samples: Sequence[RolloutRecord]) -> list[RewardBar]:
    """Return a bar for each sample: its reward, or a mark for one that has none."""
    rewards = [each.reward for each in samples if each.reward is not None]
    low, high = min([0.0, *rewards]), max([1.0, *rewards])
    width = 100 / max(1, len(samples))
    return [_bar(each, number * width, width, low, high) for number, each in enumerate(samples)]


def _bar(sample: RolloutRecord, start: float, width: float, low: float, high: float) -> RewardBar:
    said = f"sample {sample.sample}: "
    if sample.reward is not None:
        share = (sample.reward - low) / (high - low)
        height = 3 + (BAR_HEIGHT - 3) * share
        name, title = "reward", f"{said}reward {sample.reward:g}"
    elif sample.outcome is None:
        name, height, title = "unfinished", BAR_HEIGHT * 0.5, f"{said}{sample.state}"
    else:
        name, height = "failed", BAR_HEIGHT * 0.5
        ended = RolloutOutcome(sample.outcome)
        without = "no reward" if ended is RolloutOutcome.COMPLETED else ended.replace("_", " ")
        title = f"{said}{without}"
    inset = width * 0.12
    return RewardBar(
        name, start + inset, width - 2 * inset, BAR_HEIGHT - height, height, title, sample.id
    )


def spread(counts: Iterable[tuple[str, int]], most: int) -> list[Part]:
    """Return a stacked column of counts, from the bottom; start and width are its top and its height."""
    parts: list[Part] = []
    top = 100.0
    for name, count in counts:
        height = 100 * count / max(1, most)
        top -= height
        if count:
            parts.append(Part(name, top, height, f"{count} {name}"))
    return parts


class PatchLine(NamedTuple):
    """A line of a patch."""

    #: ``file``, ``hunk``, ``add``, ``del`` or ``same``.
    kind: str
    text: str


@dataclass(frozen=True)
class PatchView:
    """What a page shows of a patch."""

    lines: list[PatchLine]
    added: int
    removed: int
    #: It has more lines, or longer ones.
    cut: bool


def patch_view(content: bytes, whole_bytes: int) -> PatchView:
    """Return the lines of a patch, of which ``content`` is the beginning."""
    every = content.decode("utf-8", "replace").splitlines()
    lines = [PatchLine(_kind(line), line[:CHARACTERS]) for line in every[:LINES]]
    longer = any(len(line) > CHARACTERS for line in every[:LINES])
    return PatchView(
        lines,
        sum(line.kind == "add" for line in lines),
        sum(line.kind == "del" for line in lines),
        longer or len(every) > LINES or len(content) < whole_bytes,
    )


def _kind(line: str) -> str:
    if line.startswith(_FILE):
        return "file"
    if line.startswith("@@"):
        return "hunk"
    return {"+": "add", "-": "del"}.get(line[:1], "same")


@dataclass(frozen=True)
class ShownArtefact:
    """An artefact of the page."""

    name: str
    size_bytes: int
    #: Number of its record: an address of a file whose name cannot be in one.
    record: int
    patch: PatchView | None
    #: Of another text: its beginning.
    text: str = ""
    cut: bool = False


def shown_artefacts(artefacts: dict[str, ArtefactShown]) -> list[ShownArtefact]:
    """Return the artefacts by name, patches with their lines and other texts with their beginning."""
    return [_shown(artefacts[name]) for name in sorted(artefacts)]


def _shown(each: ArtefactShown) -> ShownArtefact:
    if each.preview is None:
        return ShownArtefact(each.name, each.size_bytes, each.record, None)
    if is_patch(each.name, each.preview):
        patch = patch_view(each.preview, each.size_bytes)
        return ShownArtefact(each.name, each.size_bytes, each.record, patch)
    text = each.preview[:TEXT_BYTES].decode("utf-8", "replace")
    cut = each.size_bytes > TEXT_BYTES
    return ShownArtefact(each.name, each.size_bytes, each.record, None, text, cut)


def _part(name: str, at: float, size: float, whole: float, title: str = "") -> Part:
    return Part(name, round(100 * at / whole, 3), round(100 * size / whole, 3), title)
