"""Documents of finished rollouts: their views with the tokens and artefacts of the log, as JSON or MessagePack.

Rules
1. Tokens are those of the last generation: an environment that was lost took its turns with it (record ``lost``), and an evaluation
   that was lost its artefacts (``eval_again``).
2. A log that was acknowledged, or whose retention is over, leaves ``segments`` null: the view is that of the row. One that
   cannot be read does as well, and ``log_problem`` says why.
3. The packed form has the members of the JSON form; `rollout.tokens.packed` states its arrays.
4. Turns are also those of a rollout that runs: what the model was asked and answered, with the tokens of each.
5. Without tokens only the heads of records are read (`RolloutLogs.heads`), of an artefact its record alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from contract.rollout_views import ArtefactView, RolloutView
from domain.errors import NotFound, Unreadable
from rollout.core.records import EVERY_STAGE, dropped_by, stored_in
from rollout.ports import Record
from scheduler.runtime.rollouts.log_frames import RecordHead
from scheduler.runtime.rollouts.log_store import RolloutLogs

_ARTEFACT: Final = "artefact"
_RESULT: Final = "result"
_STAGE: Final = "stage"
_TURN: Final = "turn"
#: Array of an artefact's record that has its bytes.
CONTENT: Final = "content"

OfRecord = TypeVar("OfRecord", Record, RecordHead)


def last_generation(records: Iterable[OfRecord]) -> Sequence[OfRecord]:
    """Return the records, or heads, that are part of the rollout: none of an environment or evaluation that was lost."""
    kept: list[OfRecord] = []
    for record in records:
        dropped = dropped_by(record.kind, record.header)
        if dropped == EVERY_STAGE:
            kept = []
        elif dropped:
            kept = [each for each in kept if stored_in(each.header) not in dropped]
        else:
            kept.append(record)
    return kept


def document_of(
    view: RolloutView, logs: RolloutLogs | None, *, tokens: bool, packed: bool
) -> dict[str, Any]:
    """Return the members of a rollout; ``logs``: where its log is, None without it. Blocks.

    ``packed``: arrays are bytes, for MessagePack. Raises NotFound without a log, RolloutLogDamaged, Unavailable, Unreadable.
    """
    found: dict[str, Any] = msgspec.to_builtins(view)
    if logs is None or view.outcome is None:
        return found
    heads = last_generation(logs.heads(view.id))
    found["artefacts"] = msgspec.to_builtins(list(artefacts_of(heads).values()))
    found["detail"] = _detail(heads)
    if tokens:
        found["segments"] = _segments(logs.read(view.id), packed=packed)
    return found


def artefacts_of(heads: Sequence[RecordHead]) -> dict[str, ArtefactView]:
    """Return the artefacts of a log by name; of equal names the last."""
    found: dict[str, ArtefactView] = {}
    for head in last_generation(heads):
        if head.kind == _ARTEFACT:
            name, facts = str(head.header.get("name", "")), head.header.get("facts")
            found[name] = ArtefactView(name, head.sizes.get(CONTENT, 0), dict(facts or {}))
    return found


def artefact_content(logs: RolloutLogs, rollout: str, name: str) -> bytes:
    """Return the bytes of an artefact. Blocks. Raises NotFound, RolloutLogDamaged, Unavailable."""
    heads = last_generation(logs.heads(rollout))
    for head in reversed(heads):
        if head.kind == _ARTEFACT and head.header.get("name") == name:
            return logs.record(rollout, head).arrays.get(CONTENT, b"")
    known = ", ".join(sorted(artefacts_of(heads))) or "none"
    raise NotFound(f"there is no artefact {name[:128]!r}; there are: {known}")


def _detail(heads: Sequence[RecordHead]) -> Mapping[str, Any]:
    """Return what the handler added to the result; empty for a rollout that ended without one."""
    for head in reversed(heads):
        if head.kind == _RESULT:
            detail = head.header.get("detail")
            return detail if isinstance(detail, dict) else {}
    return {}


def _segments(log: Sequence[Record], *, packed: bool) -> list[dict[str, Any]]:
    records = last_generation(log)
    if not any(record.kind == _TURN for record in records):
        return []
    # Numpy takes 20 MiB and 0.1 s, which a web process without rollouts need not spend.
    from rollout.tokens.packed import packed_segment, segment_document
    from rollout.tokens.segments import segments_of
    from rollout.tokens.turn_records import turns_of

    form = packed_segment if packed else segment_document
    try:
        return [form(segment) for segment in segments_of(turns_of(records))]
    except ValueError as error:
        raise Unreadable(f"the turns of a log form no segments: {error}") from error


def turns_document(
    rollout: str,
    records: Sequence[Record],
    *,
    names: Mapping[str, str] | None = None,
    packed: bool,
) -> dict[str, Any]:
    """Return the members of `RolloutTurns`. Raises Unreadable.

    ``names``: those of backends that are shown, by those of the log; any other is left out. None: all are shown.
    """
    present = last_generation(records)
    turns = [record for record in present if record.kind == _TURN]
    return {
        "id": rollout,
        "turns": _turns(turns, names, packed=packed) if turns else [],
        "value": dict(_header(present, _STAGE).get("value") or {}),
        "failed_stage": str((_header(present, _RESULT).get("error") or {}).get("stage") or ""),
    }


def _turns(
    records: Sequence[Record], names: Mapping[str, str] | None, *, packed: bool
) -> list[dict[str, Any]]:
    # Numpy takes 20 MiB and 0.1 s, which a web process without rollouts need not spend.
    from rollout.tokens.turn_records import turn_of

    found: list[dict[str, Any]] = []
    for record in records:
        turn = turn_of(record)
        ids, logprobs = turn.tokens.ids, turn.tokens.logprobs
        arrays = {"context_ids": turn.context, "response_ids": ids, "logprobs": logprobs}
        found.append(
            {
                "message": turn.message,
                **{
                    name: each if each is None else each.tobytes() if packed else each.tolist()
                    for name, each in arrays.items()
                },
                "weights_version": turn.weights_version,
                "finish": turn.tokens.finish,
                "backend": turn.backend if names is None else names.get(turn.backend, ""),
                "follows": turn.follows,
                "asked": list(turn.asked),
                "tools": list(turn.tools),
            }
        )
    return found


def _header(records: Sequence[Record], kind: str) -> Mapping[str, Any]:
    """Return the header of the last record of a kind; empty without one."""
    return next((record.header for record in reversed(records) if record.kind == kind), {})
