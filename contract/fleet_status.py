"""Status of fleets of language models, as the scheduler loop answers it: workers, trajectories, routes and moves now.

Numbers of workers are those of `FleetWorkerStatus.number`. Seconds are durations or ages, tokens are counts.
"""

from __future__ import annotations

import msgspec

from domain.action import ActionState
from domain.fleet_engines import WorkerProcess
from domain.fleets import FleetEngine, FleetWorker, PlacementName, TransferAdapter

#: States of a trajectory: a worker runs a generation of it, one waits for its worker's slot or for a route, or it is in a tool.
RUNS, QUEUED, WAITS, IN_TOOL = "runs", "queued", "waits", "in_tool"
#: States of a move: asked for, its transfer runs, or it was given up and its end is awaited.
PLANNED, RUNNING, GIVEN_UP = "planned", "running", "given_up"


class FleetWorkerStatus(msgspec.Struct, omit_defaults=True):
    """A worker and what it has to do."""

    facts: FleetWorker
    #: Slots that generations hold.
    running: int = 0
    #: Generations that are routed to it and have no slot.
    waiting: int = 0
    #: Trajectories whose cache it has, and their tokens.
    trajectories: int = 0
    context_tokens: int = 0

    @property
    def number(self) -> int:
        """Number that allocations name."""
        return self.facts.number


class FleetTrajectoryStatus(msgspec.Struct, omit_defaults=True):
    """A trajectory that is not finished."""

    #: ``project/name``.
    key: str
    #: One of `RUNS`, `QUEUED`, `WAITS`, `IN_TOOL`.
    state: str
    #: Generations that ended.
    steps: int = 0
    sampled_tokens: int = 0
    context_tokens: int = 0
    #: Where its cache is or is made; None: nowhere.
    worker: int | None = None
    #: Tokens that it is predicted to sample in all; None: nothing was predicted.
    predicted_tokens: float | None = None
    pinned: bool = False


class CacheMoveStatus(msgspec.Struct, omit_defaults=True):
    """A move of a cache that is planned or runs."""

    key: str
    source: int
    target: int
    #: One of `PLANNED`, `RUNNING`, `GIVEN_UP`.
    state: str
    context_tokens: int = 0
    #: Time by which the trajectory is expected to end sooner, with the transfer counted.
    gain_seconds: float = 0.0
    #: Since it was planned, or since its transfer began.
    age_seconds: float = 0.0


class RouteStatus(msgspec.Struct, omit_defaults=True):
    """Why a trajectory is on its worker, or why its latest generation waits (`placement.explanation`)."""

    key: str
    code: str
    sentence: str
    #: None: no generation of it was routed yet.
    worker: int | None = None
    former_worker: int | None = None
    #: Greater is served first, among equal priorities.
    rank: float | None = None
    #: Worker that an operator has bound its next generation to; None: it is not pinned.
    pin: int | None = None
    #: Since it was routed.
    age_seconds: float | None = None
    #: The latest generation has no route; for so many seconds more at most, None: until an event.
    waits: bool = False
    waits_seconds: float | None = None
    #: When it was routed: generations on the worker before it, and on the usable worker with fewest.
    generations: int = 0
    least_generations: int = 0
    context_tokens: int = 0
    cached_tokens: int = 0
    #: What is predicted to be left; None: nothing was predicted.
    tokens_left: float | None = None
    tool_seconds_left: float | None = None
    predictor: str = ""
    #: Measured rank correlation of predicted and true remaining seconds.
    correlation: float = 1.0


class PlannedPlacement(msgspec.Struct, omit_defaults=True):
    """A trajectory that an arrangement of now would have on another worker."""

    key: str
    #: None: it has no worker yet.
    worker: int | None
    planned: int
    #: Of its cache, which would be moved or filled again.
    context_tokens: int = 0
    #: Predicted to be sampled still; None: nothing was predicted.
    tokens_left: float | None = None


class FleetPlanStatus(msgspec.Struct, omit_defaults=True):
    """What an arrangement of all trajectories that are not pinned would change now (`placement.fleet_questions`)."""

    #: ``arranged``, or why nothing is arranged.
    code: str
    sentence: str
    #: Trajectories that are not pinned, and those of them that would change their worker, of all projects.
    trajectories: int = 0
    changes: int = 0
    #: Trajectories of which something is predicted; the others count as typical ones.
    predicted: int = 0
    #: Estimated seconds until all that is left has ended, where it is and as arranged; None: nothing is arranged.
    kept_seconds: float | None = None
    planned_seconds: float | None = None
    #: Of the projects of the query, longest first.
    placements: list[PlannedPlacement] = []


class FleetStatus(msgspec.Struct, omit_defaults=True):
    """One fleet."""

    name: str
    engine: FleetEngine
    policy: PlacementName
    #: As declared; empty: as the workers say.
    transfer: TransferAdapter = TransferAdapter.PROBED
    workers: list[FleetWorkerStatus] = []
    #: Generations without a worker, by the code of their wait.
    unrouted: dict[str, int] = {}
    #: Trajectories that are not finished, of all projects.
    live: int = 0
    #: Those that the query asks for, longest first, and how many there are of its projects.
    trajectories: list[FleetTrajectoryStatus] = []
    seen: int = 0
    moves: list[CacheMoveStatus] = []
    #: Predictions that changed nothing, by cause: ``late``, ``unusable``.
    refused: dict[str, int] = {}
    #: Measured rank correlation of predicted and true remaining seconds; 1 without samples.
    correlation: float = 1.0
    #: Predicted and true remaining seconds at the first prediction of the trajectories that finished last, of all projects, where the query
    #: asks for trajectories.
    finished: list[tuple[float, float]] = []
    #: Mean seconds of a generation, recent ones most; 0: none has ended.
    generation_seconds: float = 0.0
    #: Of the trajectory that the query names.
    route: RouteStatus | None = None
    #: Where the query asks for it.
    plan: FleetPlanStatus | None = None


class WorkerEngineStatus(msgspec.Struct, omit_defaults=True):
    """The action that runs the engine of a worker of our own, until it is finished."""

    action: str
    project: str
    process: WorkerProcess
    #: GPUs that it has or waits for.
    degree: int
    state: ActionState
    #: Where it runs, and on which GPUs.
    node: str = ""
    gpus: tuple[int, ...] = ()
    #: Since it is in this state.
    age_seconds: float = 0.0
    #: Why it waits.
    waits: str = ""
    #: It is being ended.
    ending: bool = False


class FleetsStatus(msgspec.Struct, omit_defaults=True):
    """Fleets by name."""

    fleets: list[FleetStatus] = []
    #: Of all fleets, those that are not declared any more too, where the query asks for them.
    #: None: it does not, or the leader is of an earlier version.
    engines: list[WorkerEngineStatus] | None = None
    #: Fleet → generations that still run on workers which it does not have any more.
    left_over: dict[str, int] = {}
