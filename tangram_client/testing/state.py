"""State of the in-memory server: actions, trajectories, and the log of events."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tangram_client.testing.clock import VirtualClock

Payload = Mapping[str, Any]


@dataclass(frozen=True)
class Ran:
    """The planned end of an action."""

    exit_code: int = 0
    stdout: str = ""
    stderr: str = ""
    outcome: str = "completed"
    seconds: float = 0.01
    detail: str | None = None


@dataclass(frozen=True)
class Hold:
    """The action goes on until the test calls ``finish``; ``state`` is where it stays."""

    state: str = "running"
    reason: str = ""


HOLD: Final = Hold()
#: Decides what becomes of an accepted action.
Run = Callable[[Payload], Ran | Hold]


@dataclass
class _Trajectory:
    payload: dict[str, Any]
    state: str = "open"
    files: dict[str, bytes] = field(default_factory=dict)
    #: On the clock of the server; 0: it was never renewed.
    ends_at: float = 0.0

    def view(self) -> dict[str, Any]:
        return {**self.payload, "state": self.state}

    def renewed(self, now: float, asked: dict[str, Any]) -> dict[str, Any]:
        """Move the end as asked, and return what the server says of the trajectory."""
        declared = (self.payload.get("environment") or {}).get("ttl_seconds", 7200.0)
        seconds = asked.get("ttl_seconds")
        end = now + (declared if seconds is None else seconds)
        self.ends_at = max(end, self.ends_at) if asked.get("only_later") else end
        return {**self.view(), "seconds_left": self.ends_at - now}


class World:
    """All objects of one server, in virtual time."""

    def __init__(self, clock: VirtualClock, run: Run) -> None:
        self.clock = clock
        self._run = run
        self.actions: dict[str, dict[str, Any]] = {}
        self.payloads: dict[str, Payload] = {}
        self.trajectories: dict[str, _Trajectory] = {}
        #: Files of snapshots, by name.
        self.snapshots: dict[str, dict[str, bytes]] = {}
        self.tasks: dict[str, dict[str, Any]] = {}
        #: Ids of actions whose work was done, once per time that it was done.
        self.executed: list[str] = []
        #: Kind and action, in the order in which it happened; the index + 1 is the cursor.
        self.events: list[tuple[str, str]] = []
        self.completions: list[str] = []
        self.renewals: dict[str, int] = {}
        #: Problems of the system, as `GET /problems` lists them.
        self.problems: list[dict[str, Any]] = []
        #: Task → its report, as `GET /tasks/{task}/report` shows it.
        self.reports: dict[str, dict[str, Any]] = {}
        self._accepted_at: dict[str, float] = {}
        self._expires_at: dict[str, float] = {}

    def accept(self, payload: Payload) -> dict[str, Any]:
        """Take an action in and run it as the test wants."""
        action_id = f"act_{len(self.actions) + 1:06d}"
        self._accepted_at[action_id] = self.clock.now()
        self.payloads[action_id] = payload
        view: dict[str, Any] = {
            "id": action_id, "state": "queued", "outcome": None, "result": None, "reward": None,
            "units": {}, "placement": None, "timing": None, "waiting": None,
            "project": payload.get("project") or "default", "task": payload["task"],
            "trajectory": payload.get("trajectory"), "kind": payload["kind"], "attempt": 1,
            "detail": None, "submitted_at": self.clock.rfc3339(),
        }  # fmt: skip
        self.actions[action_id] = view
        name = view["trajectory"]
        if name and self.open({"id": name, "task": payload["task"]}).state != "open":
            late = Ran(outcome="cancelled", seconds=0.0, detail="the trajectory is over")
            self.finish(action_id, late)
        else:
            self._proceed(view, payload)
        return view

    def _proceed(self, view: dict[str, Any], payload: Payload) -> None:
        end = HOLD if payload["kind"] == "lease" else self._run(payload)
        if isinstance(end, Hold) and end.state == "queued":
            reason = end.reason or "short of cpu"
            view["waiting"] = {"code": "short_of", "reason": reason, "position": 0}
            return
        self.grant(view["id"])
        if isinstance(end, Ran):
            self.finish(view["id"], end)

    def grant(self, action_id: str) -> None:
        """Give an action its minimum units."""
        view, payload = self.actions[action_id], self.payloads[action_id]
        lease = payload["kind"] == "lease"
        view.update(
            state="running",
            waiting=None,
            units={name: least(units) for name, units in payload.get("cost", {}).items()},
            placement={"node": "n1", "cpus": [0]},
            granted_at=self.clock.rfc3339(),
        )
        self.events.append(("granted", action_id))
        if lease:
            self.renew(action_id, None)

    def finish(self, action_id: str, ran: Ran) -> None:
        """End an action; a second end is ignored."""
        view, payload = self.actions[action_id], self.payloads[action_id]
        if view["state"] == "finished":
            return
        if ran.outcome == "completed" and payload["kind"] != "lease":
            self.executed.append(action_id)
        queued = view["state"] == "queued"
        self.clock.advance(ran.seconds)
        act = self.clock.now() - self._accepted_at[action_id]
        execution = 0.0 if queued else ran.seconds
        view.update(
            state="finished", outcome=ran.outcome, waiting=None, detail=ran.detail,
            result=_result(payload, ran), reward=_reward(payload, ran),
            finished_at=self.clock.rfc3339(),
            timing={
                "queue_seconds": act - execution, "overhead_seconds": 0.0,
                "execution_seconds": execution, "act_seconds": act,
            },
        )  # fmt: skip
        self.completions.append(action_id)
        self.events.append(("finished", action_id))

    def renew(self, action_id: str, ttl_seconds: float | None) -> None:
        """Move the end of a lease."""
        declared = (self.payloads[action_id].get("lease") or {}).get("ttl_seconds", 30.0)
        self._expires_at[action_id] = self.clock.now() + (ttl_seconds or declared)
        self.renewals[action_id] = self.renewals.get(action_id, -1) + 1

    def tick(self) -> None:
        """End the leases that were not renewed in time."""
        for action_id, expires_at in list(self._expires_at.items()):
            if expires_at <= self.clock.now():
                del self._expires_at[action_id]
                self.finish(action_id, Ran(outcome="timeout", seconds=0.0, detail="not renewed"))

    def open(self, payload: Payload) -> _Trajectory:
        """Create a trajectory, or return the one there is."""
        name = payload["id"]
        begun = self.snapshots.get((payload.get("environment") or {}).get("snapshot", ""), {})
        return self.trajectories.setdefault(name, _Trajectory(dict(payload), files=dict(begun)))

    def take_snapshot(self, trajectory: str, name: str) -> None:
        """Keep the files of a trajectory under a name."""
        self.snapshots[name] = dict(self.trajectories[trajectory].files)

    def fork(self, source: str, names: list[str]) -> None:
        """Open trajectories with the files of another one."""
        parent = self.trajectories[source]
        for name in names:
            payload = {**parent.payload, "id": name}
            self.trajectories[name] = _Trajectory(payload, files=dict(parent.files))

    def finish_trajectory(self, name: str) -> None:
        """End a trajectory and whatever of it is not finished."""
        trajectory = self.trajectories[name]
        trajectory.state = "finished"
        trajectory.files.clear()
        for action_id, view in self.actions.items():
            if view["trajectory"] == name:
                self.finish(action_id, Ran(outcome="cancelled", seconds=0.0))


def least(units: Any) -> float:
    """Return the smallest count of a cost."""
    if isinstance(units, Mapping):
        return float(units["min"])
    return float(min(units)) if isinstance(units, list) else float(units)


def _result(payload: Payload, ran: Ran) -> dict[str, Any] | None:
    if payload["kind"] != "exec" or (ran.outcome != "completed" and not ran.stdout + ran.stderr):
        return None
    return {
        "exit_code": ran.exit_code if ran.outcome == "completed" else None, "stdout": ran.stdout, "stderr": ran.stderr, "truncated": False,
    }  # fmt: skip


def _reward(payload: Payload, ran: Ran) -> float | None:
    rule = payload.get("reward")
    if not rule or ran.outcome != "completed":
        return None
    if rule["from"] == "exit_code":
        return {0: 1.0, 1: 0.0}.get(ran.exit_code)
    if rule["from"] == "junit" or "file" in rule:
        return None  # there are no files of commands
    try:
        value = json.loads(ran.stdout.splitlines()[-1])
        for name in rule["path"].split("."):
            value = value[name]
        return float(value)
    except (IndexError, KeyError, TypeError, ValueError):
        return None
