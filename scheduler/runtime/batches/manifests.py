"""Manifests: the rows of a batch from the facts of finished rollouts, and the rollouts that cannot train.

Rules
1. Rows are in the order of the rollouts of the request, then of their segments.
2. A rollout trains when it completed with a reward and its log has tokens. Each other one is refused with a code, the reason and
   the cure; one refusal refuses the batch, unless the request leaves such rollouts out.
3. A manifest is complete when it is made: owners, lengths and versions never change.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import isfinite
from time import time_ns
from typing import Final, NamedTuple

from contract.batch_requests import MAX_BATCH_ROWS
from contract.batch_views import BatchManifest, BatchOwner, BatchRow, LeftOutRollout
from contract.responses import rfc3339
from contract.rollout_views import RolloutView
from contract.route import API_PREFIX
from domain.errors import InvalidRequest
from domain.rollouts import RolloutOutcome, RolloutState
from scheduler.runtime.batches.owners import AskedOwners, owned_rollouts
from scheduler.runtime.batches.row_reader import RowGone, RowReader

UNFINISHED: Final = "rollout_unfinished"
NOT_COMPLETED: Final = "rollout_not_completed"
WITHOUT_REWARD: Final = "rollout_without_reward"
WITHOUT_TOKENS: Final = "rollout_without_tokens"


class FoundRows(NamedTuple):
    """Rows of the rollouts that can train, and the others."""

    rows: list[BatchRow]
    refused: list[LeftOutRollout]
    #: All rollouts of the request, in its order.
    requested: list[str]


def new_batch_id() -> str:
    """Return a new id: ``bat_``, 12 hexadecimal digits of time, 16 of chance. Sorts by creation."""
    return f"bat_{time_ns() // 1_000_000:012x}{os.urandom(8).hex()}"


def found_rows(views: Sequence[RolloutView], reader: RowReader) -> FoundRows:
    """Return the rows of rollouts. Blocks. Raises Unavailable; InvalidRequest above `MAX_BATCH_ROWS`."""
    rows: list[BatchRow] = []
    refused: list[LeftOutRollout] = []
    for view in views:
        problem = _problem(view)
        if problem is None:
            try:
                made = _rows_of(view, reader, len(rows))
            except RowGone as error:
                problem = LeftOutRollout(view.id, error.code, str(error))
            else:
                rows += made
                if not made:
                    detail = (
                        f"{view.id} has no turn of a model: nothing of it can train; leave it out"
                    )
                    problem = LeftOutRollout(view.id, WITHOUT_TOKENS, detail)
        if problem is not None:
            refused.append(problem)
        if len(rows) > MAX_BATCH_ROWS:
            raise InvalidRequest(
                f"the rollouts have more than {MAX_BATCH_ROWS} segments: divide the batch",
                pointer="/rollouts",
            )
    return FoundRows(rows, refused, [view.id for view in views])


def manifest_of(
    batch: str,
    project: str,
    found: FoundRows,
    asked: AskedOwners,
    created: float,
    expires: float,
) -> BatchManifest:
    """Return the manifest of a batch, without workers and tokens. Raises InvalidRequest."""
    rows, tokens = found.rows, dict[str, int]()
    for row in rows:
        tokens[row.rollout] = tokens.get(row.rollout, 0) + row.prompt_tokens + row.response_tokens
    owned = owned_rollouts(asked, found.requested, tokens)
    owners = [
        _owner(rank, [row for row in rows if row.rollout in theirs])
        for rank, theirs in sorted(owned.items())
    ]
    versions = [version for row in rows for version in row.weights_versions]
    return BatchManifest(
        id=batch,
        project=project,
        created_at=rfc3339(created),
        expires_at=rfc3339(expires),
        ranks=len(owners),
        tokens=sum(tokens.values()),
        bytes=sum(row.bytes for row in rows),
        weights_versions=(min(versions), max(versions)) if versions else None,
        rows=rows,
        owners=owners,
        rows_path=f"{API_PREFIX}/batches/{batch}/rows",
        left_out=found.refused,
    )


def _problem(view: RolloutView) -> LeftOutRollout | None:
    """Return why a rollout cannot train, by its view; None: it can."""
    name = view.id
    if view.state is not RolloutState.FINISHED or view.outcome is None:
        detail = f"{name} is {view.state.value}: wait for its end (GET /rollouts/{name}?wait=30), cancel it, or leave it out"
        return LeftOutRollout(name, UNFINISHED, detail)
    if view.outcome is not RolloutOutcome.COMPLETED:
        why = f" ({view.reason[:200]})" if view.reason else ""
        detail = f"{name} is {view.outcome.value}{why}: it never trains; leave it out, or submit its instance again"
        return LeftOutRollout(name, NOT_COMPLETED, detail)
    if view.reward is None or not isfinite(view.reward):
        why = f" ({view.reason[:200]})" if view.reason else ""
        detail = (
            f"{name} completed without a reward{why}: leave it out, or submit its instance again"
        )
        return LeftOutRollout(name, WITHOUT_REWARD, detail)
    return None


def _rows_of(view: RolloutView, reader: RowReader, first: int) -> list[BatchRow]:
    assert view.reward is not None
    return [
        BatchRow(
            row=first + number,
            rollout=view.id,
            segment=number,
            prompt_tokens=segment.facts.prompt_tokens,
            response_tokens=segment.facts.response_tokens,
            sampled_tokens=segment.facts.sampled_tokens,
            reward=view.reward,
            weights_versions=segment.facts.weights_versions,
            bytes=segment.facts.frame_bytes,
            logprobs=segment.facts.logprobs,
            task=view.task,
            group=view.group,
            instance=view.instance,
            sample=view.sample,
            worker=view.worker,
        )
        for number, segment in enumerate(reader.segments(view.id))
    ]


def _owner(rank: int, rows: Sequence[BatchRow]) -> BatchOwner:
    return BatchOwner(
        rank,
        [row.row for row in rows],
        sum(row.prompt_tokens + row.response_tokens for row in rows),
        sum(row.bytes for row in rows),
    )
