"""Facts that problems are judged by, as they were at one instant. Collected by `tangram_web.problems.collecting`.

A source that could not be read is None: conditions that rest on it are neither true nor false then, and
the problems of their kinds stay as they are. Times are wall clock, in seconds since 1970.
"""

from __future__ import annotations

from typing import Any

import msgspec


class QueueFact(msgspec.Struct, frozen=True, kw_only=True):
    """One wait queue, and the action that its head waits for."""

    pool: str
    node: str = ""
    waiting: int
    waited_seconds: float
    #: Units that each action needs.
    needs: dict[str, float] = {}
    #: Code of the reason, and the service, node or pool that it names.
    code: str = ""
    subject: str = ""
    #: Its head, and the resource that this one is short of.
    head: str = ""
    resource: str = ""
    #: Action that it waits for: one that waits before it, or one that holds units. Of the latter, what it holds and for how long.
    blocked_by: str = ""
    held: str = ""
    held_seconds: float | None = None


class BlockerFact(msgspec.Struct, frozen=True, kw_only=True):
    """An action that others wait for."""

    project: str
    task: str
    node: str = ""
    trajectory: str = ""


class EndpointFact(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook endpoint whose deliveries fail."""

    id: str
    project: str
    host: str
    failing_since: float
    waiting: int = 0


class WebProcessFact(msgspec.Struct, frozen=True, kw_only=True):
    """A web process that shows life, or did."""

    host: str
    pid: int
    began: float
    #: When it last showed life.
    at: float
    #: By how much its event loop ran late.
    delay_seconds: float = 0.0
    #: It took its sign of life away.
    ended: bool = False


class SystemFacts(msgspec.Struct, kw_only=True):
    """Everything that conditions read."""

    now: float
    #: Bodies of the live topics.
    overview: dict[str, Any] | None = None
    nodes: list[dict[str, Any]] | None = None
    #: Status of the scheduler: quotas and hindrances by resource.
    resources: dict[str, dict[str, Any]] | None = None
    queues: list[QueueFact] | None = None
    #: Action that others wait for → what is known of it.
    blockers: dict[str, BlockerFact] = {}
    #: Role → when a process of it last showed life; roles that never ran are missing.
    roles: dict[str, float] | None = None
    #: Node → when its worker last showed life.
    node_workers: dict[str, float] = {}
    #: Name → web process. Their time counts from ``web_since`` where that is later: the whole system was stopped before.
    web: dict[str, WebProcessFact] | None = None
    web_since: float = 0.0
    has_leader: bool = True
    heartbeat_age: float | None = None
    #: Reader of the journal → seconds that it lags.
    lags: dict[str, float] = {}
    inbox_entries: int = 0
    dead_letters: int = 0
    #: Bytes that Redis uses, and may use.
    redis_memory: tuple[int, int] | None = None
    #: Replicas of Redis that follow, and that must confirm.
    redis_replicas: tuple[int, int] | None = None
    endpoints: list[EndpointFact] | None = None
    #: Project → its submitter, where one is known.
    submitters: dict[str, str] = {}

    def owner_in(self, project: str) -> str:
        """Return the owner of a problem with work of a project: its submitter, else the project."""
        return self.submitters.get(project, f"project {project}")


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition that holds now: what a problem says while it lasts."""

    kind: str
    #: Object in the kind, as a node or a resource is named; with the kind it identifies the problem.
    subject: str
    severity: str
    #: Subject and fact; numbers and instants in the detail. The short form is for the sentence on health.
    title: str
    brief: str
    detail: str
    #: Project that alone sees it; empty: every reader.
    project: str = ""
    #: Since when it holds, where a fact says so.
    since: float | None = None
    #: Actions that it holds up, what they do, and the list of them.
    affected: int = 0
    affected_word: str = "waiting"
    affected_note: str = ""
    affected_link: str = ""
    owner: str = "platform"
    owner_note: str = ""
    #: The verb that helps, and the page that shows the evidence.
    verb: str = ""
    verb_link: str = ""
    evidence: str = ""
    evidence_link: str = ""
    #: Rows of the strip of resources that it marks, as in ``pool/coding`` and ``api:serper``.
    marks: tuple[str, ...] = ()
    #: Word of the mark.
    mark: str = ""

    @property
    def id(self) -> str:
        """Return what identifies the problem."""
        return f"{self.kind}:{self.subject}"


#: Conditions that hold, or None where they are unknown.
Found = list[Condition] | None
