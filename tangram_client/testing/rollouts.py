"""Rollouts of the in-memory server: some run at once, in virtual time, and end as the test plans."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tangram_client.testing.answers import FakeAnswer, FakeRefusal
from tangram_client.testing.clock import VirtualClock

Endpoint = tuple[str, str, Callable[..., FakeAnswer]]


@dataclass(frozen=True)
class PlannedRollout:
    """How a rollout runs: its seconds with a worker, and its end."""

    seconds: float = 1.0
    reward: float | None = 1.0
    outcome: str = "completed"
    reason: str = ""


#: Decides how an accepted rollout runs; it gets the members of the rollout, with its instance's ``data``.
PlanRollout = Callable[[Mapping[str, Any]], PlannedRollout]


class FakeRollouts:
    """Rollouts, their log of completions, and pools of backends."""

    def __init__(self, clock: VirtualClock, slots: int = 8) -> None:
        self._clock = clock
        #: Rollouts that run at once; a test may change it before its first submission.
        self.slots = slots
        self.plan: PlanRollout = lambda rollout: PlannedRollout()
        self.views: dict[str, dict[str, Any]] = {}
        self.completed: list[str] = []
        #: Pool → backends by name, and its weights version.
        self.pools: dict[str, dict[str, dict[str, Any]]] = {}
        self.versions: dict[str, int] = {}
        #: Seconds of workers that were used.
        self.busy_seconds = 0.0
        self._plans: dict[str, PlannedRollout] = {}
        self._left: dict[str, float] = {}
        self._waiting: list[str] = []
        #: Running rollout → time of its end.
        self._ends: dict[str, float] = {}

    def table(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            ("POST", "/rollouts", self._submit),
            ("GET", "/rollouts", self._list),
            ("GET", "/rollouts/completions", self._completions),
            ("POST", "/rollouts/acknowledge", self._acknowledge),
            ("GET", "/rollouts/([^/]+)", self._get),
            ("POST", "/rollouts/(cancel|park|resume)", self._change_many),
            ("POST", "/rollouts/([^/]+)/(cancel|park|resume)", self._change),
            ("GET", "/backends", self._backends),
            ("POST", "/backends", self._put_backend),
            ("POST", "/backends/([^/]+)/clear", self._clear),
        )

    def settle(self) -> None:
        """Let happen what has happened by now."""
        now = self._clock.now()
        while self._ends:
            rollout = min(self._ends, key=lambda each: (self._ends[each], each))
            at = self._ends[rollout]
            if at > now:
                return
            plan = self._plans[rollout]
            self._finish(rollout, plan.outcome, plan.reward, plan.reason)
            self._fill(at)

    def _fill(self, at: float) -> None:
        while self._waiting and len(self._ends) < self.slots:
            rollout = self._waiting.pop(0)
            self._ends[rollout] = at + self._left[rollout]
            self.views[rollout].update(state="assigned", stage="run")

    def _finish(self, rollout: str, outcome: str, reward: float | None, reason: str) -> None:
        self._stop(rollout)
        view = self.views[rollout]
        trained = reward if outcome == "completed" else None
        view.update(state="finished", outcome=outcome, reward=trained, reason=reason, stage=None)
        view["segments"] = [{"prompt_ids": [1], "response_ids": [2], "loss_mask": [1]}]
        self.completed.append(rollout)

    def _stop(self, rollout: str) -> None:
        """Take a rollout from its worker, or out of the queue."""
        if rollout in self._ends:
            left = max(0.0, self._ends.pop(rollout) - self._clock.now())
            self.busy_seconds += self._left[rollout] - left
            self._left[rollout] = left
        if rollout in self._waiting:
            self._waiting.remove(rollout)

    def _submit(self, request: httpx.Request) -> FakeAnswer:
        self.settle()
        body = json.loads(request.content)
        made = []
        for instance in body["instances"]:
            first = len(self.views)
            samples = body.get("samples", 1)
            group = body.get("group") or (f"grp_{first}" if samples > 1 else None)
            for sample in range(samples):
                view = {
                    "id": f"rol_{len(self.views):028x}", "state": "waiting", "outcome": None, "reward": None,
                    "reason": "", "task": body["task"], "handler": body["handler"], "instance": instance["id"],
                    "group": group, "sample": sample, "metadata": body.get("metadata", {}), "segments": None,
                }  # fmt: skip
                self.views[view["id"]] = view
                self._plans[view["id"]] = self.plan({**view, "data": instance.get("data", {})})
                self._left[view["id"]] = self._plans[view["id"]].seconds
                self._waiting.append(view["id"])
                made.append({name: view[name] for name in ("id", "instance", "sample", "group")})
        self._fill(self._clock.now())
        return FakeAnswer.json({"rollouts": made}, 202)

    def _list(self, request: httpx.Request) -> FakeAnswer:
        self.settle()
        params = request.url.params
        items = [
            view
            for view in self.views.values()
            if view["state"] != "finished"
            and all(params.get(name) in (None, view[name]) for name in ("task", "group"))
        ]
        return FakeAnswer.json({"items": items, "more": False})

    def _completions(self, request: httpx.Request) -> FakeAnswer:
        self.settle()
        params = request.url.params
        after = params.get("after", "")
        start = len(self.completed) if after == "now" else int(after or 0)
        wait = float(params.get("wait", 0))
        if after != "now" and len(self.completed) <= start and wait:
            self._pass(wait)
        end = start + int(params.get("limit", 32))
        tokens = params.get("segments") != "false"
        items = [self._shown(rollout, tokens) for rollout in self.completed[start:end]]
        more = end < len(self.completed)
        return FakeAnswer.json({"items": items, "next": str(start + len(items)), "more": more})

    def _pass(self, seconds: float) -> None:
        """Let time pass until the next end, at most so long."""
        now = self._clock.now()
        self._clock.advance(min([seconds, *(at - now for at in self._ends.values())]))
        self.settle()

    def _get(self, request: httpx.Request, rollout: str) -> FakeAnswer:
        self.settle()
        view = self._known(rollout)
        if view["state"] != "finished" and (wait := float(request.url.params.get("wait", 0))):
            left = self._ends.get(rollout, self._clock.now() + wait) - self._clock.now()
            self._clock.advance(min(wait, left))
            self.settle()
        tokens = request.url.params.get("segments") != "false"
        return FakeAnswer.json(self._shown(rollout, tokens))

    def _shown(self, rollout: str, tokens: bool) -> dict[str, Any]:
        view = self.views[rollout]
        return view if tokens else {**view, "segments": None}

    def _change(self, request: httpx.Request, rollout: str, verb: str) -> FakeAnswer:
        self.settle()
        reason = json.loads(request.content or b"{}").get("reason")
        outcome = self._asked(rollout, verb, reason)
        self._fill(self._clock.now())
        if outcome is not None:
            return FakeAnswer.json(self.views[rollout])
        return FakeAnswer.json({"id": rollout, "asked": verb}, 202)

    def _change_many(self, request: httpx.Request, verb: str) -> FakeAnswer:
        self.settle()
        body, items = json.loads(request.content), []
        for rollout in body["ids"]:
            if not re.fullmatch(r"rol_[0-9a-f]{28}", rollout):
                refusal = FakeRefusal(404, "not_found", f"there is no rollout {rollout!r}")
                items.append({"id": rollout, "status": 404, "problem": refusal.body})
                continue
            outcome = self._asked(rollout, verb, body.get("reason"))
            end = {} if outcome is None else {"outcome": outcome}
            items.append({"id": rollout, "status": 202 if outcome is None else 200, **end})
        self._fill(self._clock.now())
        return FakeAnswer.json({"asked": verb, "items": items}, 202)

    def _asked(self, rollout: str, verb: str, reason: str | None) -> str | None:
        """Change a rollout; return the outcome of one that was finished before."""
        if rollout not in self.views:  # remembered: ids of others are made by the server alone
            return None
        view = self.views[rollout]
        if view["state"] == "finished":
            return str(view["outcome"])
        if verb == "cancel":
            self._finish(rollout, "cancelled", None, reason or "cancelled by request")
        elif verb == "park" and view["state"] != "parked":
            self._stop(rollout)
            view.update(state="parked", stage=None)
        elif verb == "resume" and view["state"] == "parked":
            view["state"] = "waiting"
            self._waiting = sorted([*self._waiting, rollout])  # by arrival
        return None

    def _acknowledge(self, request: httpx.Request) -> FakeAnswer:
        self.settle()
        asked = json.loads(request.content)["ids"]
        done = [each for each in asked if each in self.views and self.views[each]["outcome"]]
        for rollout in done:
            self.views[rollout]["segments"] = None
        return FakeAnswer.json({"ids": done})

    def _known(self, rollout: str) -> dict[str, Any]:
        try:
            return self.views[rollout]
        except KeyError:
            raise FakeRefusal(404, "not_found", f"there is no rollout {rollout!r}") from None

    def _backends(self, request: httpx.Request) -> FakeAnswer:
        pools = [
            {"pool": pool, "weights_version": self.versions[pool], "backends": list(found.values())}
            for pool, found in self.pools.items()
        ]
        return FakeAnswer.json({"pools": pools})

    def _put_backend(self, request: httpx.Request) -> FakeAnswer:
        body = json.loads(request.content)
        pool, name = body["pool"], body.get("name") or httpx.URL(body["address"]).netloc.decode()
        version = self.versions.setdefault(pool, 1)
        backend = {**body, "name": name, "weights_version": version}
        self.pools.setdefault(pool, {})[name] = backend
        return FakeAnswer.json({"pool": pool, "backend": name}, 202)

    def _clear(self, request: httpx.Request, pool: str) -> FakeAnswer:
        if pool not in self.pools:
            raise FakeRefusal(404, "not_found", f"there is no pool of backends {pool!r}")
        self.pools[pool] = {}
        self.versions[pool] += 1
        return FakeAnswer.json({"pool": pool, "backend": ""}, 202)
