"""What the keeper of fleets found, as it stores it in Redis for pages."""

from __future__ import annotations

import msgspec

from domain.fleets import PriorityUse, TransferAdapter


class ProbedWorker(msgspec.Struct, omit_defaults=True):
    """The latest probe of one worker."""

    name: str
    #: Wall clock, RFC 3339.
    checked_at: str
    #: Why it did not answer; empty: it did.
    failing: str = ""
    #: Checks in a row with an answer; below 0: without one.
    in_a_row: int = 0
    priorities: PriorityUse = PriorityUse.UNKNOWN
    weights_version: int | None = None


class ProbedMoves(msgspec.Struct):
    """What one adapter found between the workers of a fleet."""

    adapter: TransferAdapter
    usable: bool
    #: What it found, or what is in the way.
    detail: str


class OwnWorkerReport(msgspec.Struct, omit_defaults=True):
    """A worker of our own, as its keeper sees it."""

    name: str
    degree: int
    #: ``waits`` (for GPUs), ``starts``, ``serves``, ``drains``, ``ends`` or ``ended``.
    state: str
    #: Why it waits, what its engine does not do, or why that ended.
    detail: str = ""
    node: str = ""
    gpus: tuple[int, ...] = ()
    #: The action that runs its engine.
    action: str = ""


class DivisionReport(msgspec.Struct, omit_defaults=True):
    """How the GPUs of a fleet are divided, and what was found when that was considered last."""

    #: In force: degrees of the workers, descending.
    degrees: tuple[int, ...]
    #: Estimated seconds of the latest batch on the division that was in force then.
    current_seconds: float
    #: The best one, and the seconds of the batch on it.
    best: tuple[int, ...]
    best_seconds: float
    #: Of a restart; None: not measured, so nothing changes.
    restart_seconds: float | None = None
    #: Finished trajectories that were looked at.
    trajectories: int = 0
    #: Wall clock, RFC 3339.
    at: str = ""


class PredictorReport(msgspec.Struct, omit_defaults=True):
    """What became of the predictions for one fleet, since its keeper keeps it."""

    name: str = ""
    #: Predictions that were sent to the scheduler.
    sent: int = 0
    #: Answers that were not used, by reason (`placement.predictions`).
    unused: dict[str, int] = {}
    #: The latest of them, in a sentence.
    problem: str = ""
    #: What the predictor says of itself, as why it does not use its trees.
    note: str = ""
    #: Finished trajectories that it was fed.
    learnt: int = 0
    #: Fits that are in use or were, and when the latest one was taken into use (wall clock, RFC 3339).
    fits: int = 0
    fitted_at: str = ""
    #: Starts of its process.
    starts: int = 0


class MovesReport(msgspec.Struct, omit_defaults=True):
    """What became of the moves of one fleet, since its keeper keeps it."""

    #: Transfers that run, or wait for the scheduler's word.
    running: int = 0
    moved: int = 0
    moved_tokens: int = 0
    failed: int = 0
    #: Given up before they began: the trajectory was back.
    dropped: int = 0
    #: Why the latest one failed.
    why: str = ""


class KeeperReport(msgspec.Struct, omit_defaults=True):
    """What the keeper knows of one fleet."""

    keeper: str = ""
    #: Wall clock, RFC 3339.
    at: str = ""
    workers: list[ProbedWorker] = []
    #: Adapter in use; empty: there are no two workers to move caches between.
    moves: TransferAdapter = TransferAdapter.PROBED
    probed_moves: list[ProbedMoves] = []
    #: By name; those that are drained because they are not declared any more too.
    own: list[OwnWorkerReport] = []
    #: None: no other one was considered.
    division: DivisionReport | None = None
    predictor: PredictorReport | None = None
    #: None: no move was planned.
    made_moves: MovesReport | None = None
