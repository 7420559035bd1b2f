"""Events of fleets: their workers, predictions for trajectories, and moves of caches.

The router and the keeper of fleets send `FleetWorkersChanged`, the keeper `CacheMoved` and `TrajectoryPredicted`, pages
`TrajectoryPinned`. The core answers with the decisions `SetFleet` and `MoveCache`; generations are actions, and have the
events of actions.

Rules
1. Every event may arrive twice. One of a fleet, a worker or a trajectory that is not known changes nothing.
2. A prediction that cannot be used (NaN, negative, late) changes nothing and is counted.
"""

from __future__ import annotations

from domain.event_base import EventBase, RequestOrigin
from domain.fleets import FleetWorker, WorkerFact
from domain.ids import TrajectoryKey


class FleetWorkersChanged(EventBase):
    """Workers of our own left or joined, and facts about workers changed, in this order."""

    fleet: str
    #: Names of workers of our own that are gone; those that the configuration declares stay.
    removed: tuple[str, ...] = ()
    #: Workers of our own that joined; one of the same name and address keeps its number.
    joined: tuple[FleetWorker, ...] = ()
    facts: tuple[WorkerFact, ...] = ()
    asked: RequestOrigin | None = None


class TrajectoryPredicted(EventBase):
    """A predictor has estimated what is left of a trajectory after its latest step."""

    fleet: str
    trajectory: TrajectoryKey
    #: Tokens still to be sampled.
    tokens: float
    #: Seconds still to be spent in tools.
    tool_seconds: float = 0.0
    #: Standard deviation of log(true / predicted) of this predictor at this step.
    sigma: float = 0.0
    #: Name of the predictor.
    source: str = ""


class CacheMoved(EventBase):
    """The transfer of a trajectory's cache began, or ended."""

    fleet: str
    trajectory: TrajectoryKey
    ended: bool = False
    #: Tokens that the target has; 0 at its end: it failed.
    tokens: int = 0
    #: Why it failed.
    why: str = ""


class TrajectoryPinned(EventBase):
    """An operator bound the generations of a trajectory to a worker, from the next one on."""

    fleet: str
    trajectory: TrajectoryKey
    #: Name of the worker.
    worker: str
    asked: RequestOrigin | None = None


class FleetsQueried(EventBase):
    """Query of fleets: workers, trajectories, routes and moves. Answered by the loop, never journalled.

    The answer is `contract.fleet_status.FleetsStatus`.
    """

    request_id: str
    reply_to: str
    #: One fleet; empty: all.
    fleet: str = ""
    #: Trajectories of each fleet in the answer, at most: those with the greatest predicted length.
    limit: int = 0
    #: Trajectories of these projects alone; None: of all.
    projects: tuple[str, ...] | None = None
    #: Trajectory whose route is explained; empty: none.
    trajectory: str = ""
    #: What an arrangement of now would change is part of the answer, with so many trajectories that would change their worker.
    plan: bool = False
    plan_limit: int = 100
    #: Engines of workers of our own are part of the answer, of all fleets.
    engines: bool = False


FleetEvent = FleetWorkersChanged | TrajectoryPredicted | CacheMoved | TrajectoryPinned
