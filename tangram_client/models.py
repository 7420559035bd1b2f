"""Answers of the server, as values.

Members that this version does not know are ignored, members that are missing get a default: a
client and a server of different versions understand each other. `ActionView.body` keeps all that
came.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem details (RFC 9457): why a request was refused."""

    status: int
    title: str = ""
    code: str = ""
    detail: str = ""
    request_id: str = ""
    #: Each has ``pointer`` (JSON Pointer into the request body) and ``detail``.
    errors: tuple[dict[str, str], ...] = ()
    #: Everything that came, as it came.
    body: Json = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, body: Json, status: int) -> Self:
        return cls(
            status=status,
            title=str(body.get("title", "")),
            code=str(body.get("code", "")),
            detail=str(body.get("detail", "")),
            request_id=str(body.get("request_id", "")),
            errors=tuple(body.get("errors") or ()),
            body=body,
        )

    def __str__(self) -> str:
        lines = [self.detail or self.title or f"HTTP {self.status}"]
        for error in self.errors:
            text = error.get("detail", "")
            if text and text not in self.detail:
                lines.append(f"{error.get('pointer') or '/'}: {text}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class ActionTiming:
    """The completion time of an action and its parts: ``act = queue + overhead + execution``."""

    queue_seconds: float
    overhead_seconds: float
    execution_seconds: float
    act_seconds: float

    @classmethod
    def of(cls, body: Json) -> Self:
        return cls(**{name: float(body.get(name, 0.0)) for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why an action waits."""

    code: str
    reason: str
    resource: str | None = None
    #: Actions that are served before this one on that resource.
    position: int | None = None
    blocked_by: str | None = None

    @classmethod
    def of(cls, body: Json) -> Self:
        return cls(**{name: body.get(name) for name in cls.__slots__})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class ActionView:
    """An action as the server shows it."""

    id: str
    state: str
    outcome: str | None = None
    #: ``exec``: exit_code, stdout, stderr, truncated, stdout_bytes, stderr_bytes. ``lease``: expires_at.
    result: Any = None
    reward: float | None = None
    units: Mapping[str, float] = field(default_factory=dict)
    #: What a command used of them: cpu_seconds, throttled_seconds, peak_memory_bytes; None where
    #: nothing counts it.
    used: Json | None = None
    timing: ActionTiming | None = None
    waiting: Waiting | None = None
    #: Node and cores; ``why`` says why so many, when the cost named no cpu.
    placement: Json | None = None
    project: str = ""
    task: str = ""
    trajectory: str | None = None
    kind: str | None = None
    #: Door that it was submitted through, as in ``e2b``; empty: the native API.
    door: str = ""
    attempt: int = 1
    detail: str | None = None
    submitted_at: str | None = None
    granted_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    #: Its request with secrets masked: ``command``, ``submitted_by``, ``files``, ``body``, ``masked``, ``obstacle``;
    #: None unless it was asked for.
    request: Json | None = None
    #: Everything that came, as it came.
    body: Json = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, body: Json) -> Self:
        plain = {name: body[name] for name in _PLAIN if name in body}
        timing, waiting = body.get("timing"), body.get("waiting")
        return cls(
            **plain,
            units=body.get("units") or {},
            timing=ActionTiming.of(timing) if timing else None,
            waiting=Waiting.of(waiting) if waiting else None,
            body=body,
        )

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def completed(self) -> bool:
        """It ran to its end; its exit code, whatever it is, is data."""
        return self.outcome == "completed"

    @property
    def succeeded(self) -> bool:
        """It ran to its end, and its command, if any, exited with 0."""
        return self.completed and self.exit_code in {0, None}

    @property
    def exit_code(self) -> int | None:
        code = self._of_result("exit_code")
        return code if isinstance(code, int) else None

    @property
    def stdout(self) -> str:
        return str(self._of_result("stdout") or "")

    @property
    def stderr(self) -> str:
        return str(self._of_result("stderr") or "")

    @property
    def truncated(self) -> bool:
        """Whether output is missing; a mark in the text says how much."""
        return bool(self._of_result("truncated"))

    @property
    def stdout_bytes(self) -> int:
        """Bytes that the command wrote, kept or not."""
        return int(str(self._of_result("stdout_bytes") or 0))

    @property
    def stderr_bytes(self) -> int:
        """The same of its standard error."""
        return int(str(self._of_result("stderr_bytes") or 0))

    @property
    def node(self) -> str | None:
        return (self.placement or {}).get("node")

    def _of_result(self, name: str) -> object:
        return self.result.get(name) if isinstance(self.result, Mapping) else None


_PLAIN = (
    "id", "state", "outcome", "result", "reward", "placement", "project", "task", "trajectory",
    "kind", "door", "attempt", "detail", "used", "submitted_at", "granted_at", "started_at", "finished_at",
    "request",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BatchItem:
    """Result for one action of a batch: its id, or the problem that refused it."""

    status: int
    id: str | None = None
    state: str | None = None
    problem: Problem | None = None

    @classmethod
    def of(cls, body: Json) -> Self:
        status, problem = int(body["status"]), body.get("problem")
        return cls(
            status=status,
            id=body.get("id"),
            state=body.get("state"),
            problem=Problem.of(problem, status) if problem else None,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Answer to a batch, one item per action, in their order."""

    items: tuple[BatchItem, ...]
    accepted: int
    refused: int

    @classmethod
    def of(cls, body: Json) -> Self:
        items = tuple(BatchItem.of(item) for item in body["items"])
        return cls(items, int(body.get("accepted", 0)), int(body.get("refused", 0)))


@dataclass(frozen=True, slots=True)
class Completions:
    """A page of the log of finished actions; ``next`` is the cursor to go on from."""

    items: tuple[ActionView, ...]
    next: str
    more: bool = False

    @classmethod
    def of(cls, body: Json) -> Self:
        items = tuple(ActionView.of(item) for item in body["items"])
        return cls(items, str(body["next"]), bool(body.get("more")))


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list; ``next`` and ``previous`` are addresses or None."""

    results: tuple[Json, ...]
    next: str | None = None
    previous: str | None = None

    @classmethod
    def of(cls, body: Json) -> Self:
        return cls(tuple(body["results"]), body.get("next"), body.get("previous"))


@dataclass(frozen=True, slots=True)
class Forks:
    """Forks of a trajectory: open trajectories that begin with the files of its environment."""

    names: tuple[str, ...]
    node: str
    #: ``sealed``: they share files and store what they change; ``copied``: each has its own.
    way: str
    seconds: float
    #: Time for which the environment was frozen for a copy.
    frozen_seconds: float
    body: Json = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, body: Json) -> Self:
        return cls(
            names=tuple(str(each["id"]) for each in body.get("trajectories", ())),
            node=str(body.get("node", "")),
            way=str(body.get("way", "")),
            seconds=float(body.get("seconds", 0.0)),
            frozen_seconds=float(body.get("frozen_seconds", 0.0)),
            body=body,
        )


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """A name of an image, and the nodes that it concerns."""

    name: str
    #: Of its files and variables; empty after a removal.
    digest: str
    nodes: tuple[str, ...] = ()
    #: Node → why nothing was changed there.
    failed: Mapping[str, str] = field(default_factory=dict)
    size_bytes: int = 0
    #: Environments that are upon it.
    environments: int = 0
    used_at: str | None = None
    #: Prepared environments: ``wanted``, ``kept``, ``taken``, ``made``, ``problem``.
    warm: Mapping[str, Any] = field(default_factory=dict)
    #: Nodes that lack the name pull it from the object store.
    stored: bool = False

    @classmethod
    def of(cls, body: Json) -> Self:
        return cls(
            name=str(body["name"]),
            digest=str(body["digest"]),
            nodes=tuple(body.get("nodes", ())),
            failed=dict(body.get("failed", {})),
            size_bytes=int(body.get("size_bytes", 0)),
            environments=int(body.get("environments", 0)),
            used_at=body.get("used_at"),
            warm=dict(body.get("warm", {})),
            stored=bool(body.get("stored")),
        )


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A program that runs in an environment."""

    #: Id inside the environment.
    pid: int
    command: str
    #: Unix time of its start, in seconds.
    started: float
    cpu_seconds: float
    memory_bytes: int
    #: Id of the action that started it, or ``session:`` and the name of a session.
    owner: str = ""
    #: An action that has ended left it behind.
    background: bool = False
    body: Json = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, body: Json) -> Self:
        return cls(
            pid=int(body["pid"]),
            command=str(body["command"]),
            started=float(body["started"]),
            cpu_seconds=float(body["cpu_seconds"]),
            memory_bytes=int(body["memory_bytes"]),
            owner=str(body.get("owner", "")),
            background=bool(body.get("background", False)),
            body=body,
        )


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session of an environment."""

    name: str
    #: ``starting``, ``idle``, ``busy``, ``prompt``, ``replaced``, ``running`` or ``ended``.
    state: str
    shell: tuple[str, ...] = ()
    pty: bool = True
    #: Exit status of the program, once it has ended.
    exit_status: int | None = None
    #: Exit status of the last command.
    last_status: int | None = None
    #: A program in the foreground waits for input.
    waits_for_input: bool = False
    #: Terminals that are attached.
    attached: int = 0

    @classmethod
    def of(cls, body: Json) -> Self:
        return cls(
            name=str(body["name"]),
            state=str(body["state"]),
            shell=tuple(body.get("shell", ())),
            pty=bool(body.get("pty", True)),
            exit_status=body.get("exit_status"),
            last_status=body.get("last_status"),
            waits_for_input=bool(body.get("waits_for_input", False)),
            attached=int(body.get("attached", 0)),
        )


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file, directory or link of an environment."""

    #: Of an entry of a listing; else the path that was asked for.
    name: str
    #: ``file``, ``directory``, ``link`` or ``other``.
    kind: str
    size_bytes: int
    #: Permissions in octal: ``0644``.
    mode: str
    modified_at: str
    #: Of a link: where it leads.
    target: str | None = None

    @classmethod
    def of(cls, body: Json) -> Self:
        return cls(
            name=str(body["name"]),
            kind=str(body["kind"]),
            size_bytes=int(body.get("size_bytes", 0)),
            mode=str(body.get("mode", "")),
            modified_at=str(body.get("modified_at", "")),
            target=body.get("target"),
        )


@dataclass(frozen=True, slots=True)
class SignedTransfer:
    """A URL of the object store for one content, which it names by its SHA-256."""

    url: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FilePage:
    """A page of the entries of a directory; ``next`` continues after it."""

    entries: list[FileInfo]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to an action; ``cursor`` resumes the stream after it."""

    kind: str
    cursor: str
    action: ActionView


@dataclass(frozen=True, slots=True)
class OutputEvent:
    """A part of the output of a command; ``cursor`` resumes the stream after it."""

    #: ``stdout``, ``stderr``; ``gap``: bytes are missing; ``restart``: another attempt; ``end``.
    kind: str
    cursor: str
    #: What the command wrote.
    data: bytes = b""
    #: Offset of the first byte in its stream.
    offset: int = 0
    #: When the node read it (RFC 3339); None where it is not known any more.
    at: str | None = None
    #: Of the end: ``outcome``, ``exit_code``, ``stdout_bytes``, ``stderr_bytes``, ``truncated``.
    body: Json = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, kind: str, cursor: str, body: Json) -> Self:
        encoded = body.get("base64")
        data = str(body.get("text", "")).encode() if encoded is None else b64decode(encoded)
        return cls(kind, cursor, data, int(body.get("offset", 0)), body.get("at"), body)

    @property
    def text(self) -> str:
        """``data`` as text; bytes that are not UTF-8 are replaced."""
        return self.data.decode(errors="replace")
