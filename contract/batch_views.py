"""Bodies of the answers about batches: manifests and summaries. They have no tokens of rollouts, which ranks pull."""

from __future__ import annotations

import msgspec


class BatchRow(msgspec.Struct):
    """A row of a batch: one segment of a rollout, and its reward."""

    row: int
    rollout: str
    #: Number of the segment in its rollout.
    segment: int
    prompt_tokens: int
    #: Tokens behind the prompt, and those of them that the model sampled.
    response_tokens: int
    sampled_tokens: int
    reward: float
    #: Least and largest weights version of its sampled tokens.
    weights_versions: tuple[int, int]
    #: Bytes that a rank pulls for it.
    bytes: int
    #: False: an engine gave no log-probabilities for a part of it.
    logprobs: bool = True
    task: str = ""
    group: str | None = None
    instance: str = ""
    sample: int = 0
    #: Rollout worker that finished the rollout, and is asked first.
    worker: str = ""


class BatchOwner(msgspec.Struct):
    """What one rank owns."""

    rank: int
    #: Numbers of its rows, in the order in which they are pulled.
    rows: list[int]
    tokens: int = 0
    bytes: int = 0
    #: Pulls the rows of this rank until the batch expires; empty: the answer shows it for another rank alone.
    token: str = ""


class RowWorker(msgspec.Struct):
    """A rollout worker that serves rows."""

    name: str
    #: ``host:port``.
    address: str


class LeftOutRollout(msgspec.Struct):
    """A rollout that the batch does not have, and why."""

    rollout: str
    code: str
    detail: str


class BatchManifest(msgspec.Struct, kw_only=True):
    """A batch: its rows, the ranks that own them, and where they are pulled."""

    id: str
    project: str
    created_at: str
    expires_at: str
    ranks: int
    #: Of all rows: tokens, prompts included, and bytes.
    tokens: int
    bytes: int
    weights_versions: tuple[int, int] | None
    rows: list[BatchRow]
    owners: list[BatchOwner]
    #: Rollout workers that live; each of them serves all rows.
    workers: list[RowWorker] = []
    #: Path of the gateway that serves rows where no worker can be reached.
    rows_path: str = ""
    left_out: list[LeftOutRollout] = []


class BatchPull(msgspec.Struct):
    """Bytes that a rollout worker has sent to a rank; worker empty: the gateway sent them."""

    worker: str
    rank: int
    bytes: int


class BatchSummary(msgspec.Struct, kw_only=True):
    """A batch without its rows."""

    id: str
    project: str
    created_at: str
    expires_at: str
    expired: bool
    ranks: int
    rollouts: int
    rows: int
    tokens: int
    bytes: int
    weights_versions: tuple[int, int] | None
    #: Of each rank, by its number.
    bytes_by_rank: list[int] = []
    left_out: int = 0
    #: What ranks have pulled, repetitions included.
    pulls: list[BatchPull] = []


class BatchList(msgspec.Struct):
    """Batches, newest first."""

    items: list[BatchSummary]
