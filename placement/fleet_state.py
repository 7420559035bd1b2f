"""State of a fleet: what is stored of its trajectories and generations beside their facts, and its snapshot."""

from __future__ import annotations

import msgspec

from placement.busy_times import PromptLoad
from placement.facts import GenerationRoute, Prediction, TrajectoryFacts, WorkerFacts
from placement.gathering import GatheringBatch
from placement.transmission import TransmissionMemory


class PredictionMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A prediction and what had been used when it was made, to compare it with the truth."""

    sampled_tokens: int
    tool_seconds: float
    tokens_left: float
    tool_seconds_left: float


class Measurement(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How right predictions were, when it was measured last."""

    #: Rank correlation of predicted and true remaining seconds.
    correlation: float = 1.0
    #: Median of true remaining seconds.
    typical_seconds: float = 0.0
    #: Trajectories that finished since.
    since: int = 0


class FleetGeneration(msgspec.Struct, omit_defaults=True):
    """A generation that has not ended."""

    name: str
    #: Key of its trajectory; empty: it has none.
    trajectory: str
    requested_at: float
    prompt_tokens: int = 0
    priority: int = 0
    route: GenerationRoute | None = None
    #: Why it has no route: a reason of `placement.explanation`.
    waits: str = ""
    #: Weights of its worker when it began; None: it did not begin.
    weights_version: int | None = None
    began_at: float = 0.0


class FleetTrajectory(msgspec.Struct, omit_defaults=True):
    """A trajectory's generations, and how it was routed."""

    #: Names of its generations that have not ended, by arrival.
    generations: list[str] = msgspec.field(default_factory=list)
    #: Worker that the arrangement of its batch gives it, until its first generation is routed.
    assigned: int | None = None
    #: Worker that an operator pinned it to.
    pin: int | None = None
    #: Why its next route differs from the former one: it was moved, or its worker was lost.
    note: str = ""
    marks: list[PredictionMark] = msgspec.field(default_factory=list)
    #: Its latest route, and the facts behind it.
    route: GenerationRoute | None = None
    routed_at: float = 0.0
    former_worker: int | None = None
    others: int = 0
    least_others: int = 0
    cached_tokens: int = 0


class FleetMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Snapshot of a fleet. New members have defaults, so that former snapshots load."""

    now: float
    arrivals: int
    workers: list[WorkerFacts]
    trajectories: list[TrajectoryFacts]
    #: In the order of ``trajectories``.
    courses: list[FleetTrajectory]
    generations: list[FleetGeneration]
    in_tools: list[tuple[str, float]]
    #: Predictions of trajectories that have not arrived, and when they were made.
    early: list[tuple[str, float, Prediction]]
    batches: list[GatheringBatch]
    transmission: TransmissionMemory
    #: Generations whose routes were not fetched yet, by the time they were routed.
    fetchable: list[str]
    #: Trajectories that wait for a transfer, and until when.
    for_transfer: list[tuple[str, float]]
    correlation: list[list[tuple[float, float]]]
    #: Predictions that were refused, by cause.
    refused: list[tuple[str, int]]
    policy: bytes
    mean_generation_seconds: float = 0.0
    measurement: Measurement = Measurement()
    prompts: PromptLoad = PromptLoad()


encode = msgspec.msgpack.Encoder(order="deterministic").encode
decode = msgspec.msgpack.Decoder(FleetMemory).decode
