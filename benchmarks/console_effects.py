"""How long the page of each verb takes until it shows the simulated effect of the verb.

Every verb whose effect is simulated is opened as a reader opens it, with values that would change something. Verbs that undo
a state are opened while the state is so: a drained node, a paused pool, a paused task. Nothing is pressed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

if TYPE_CHECKING:
    from playwright.sync_api import Page

#: Method, path and body of a request → answer.
Ask = Callable[[str, str, object], Any]

#: An API with a limit and a quota, for verbs on these.
API: Final = "api:counted"
API_UNITS: Final = 4
METERED: Final = "api:metered"
DECLARED: Final = f"""apiVersion: tangram/v1
kind: Resource
metadata: {{name: "{API}"}}
spec: {{limit_units: {API_UNITS}}}
---
apiVersion: tangram/v1
kind: Resource
metadata: {{name: "{METERED}"}}
spec: {{limit_units: 8, quotas: [{{units: 100000, window_seconds: 60}}]}}
"""
TASK: Final = "held"
_SHOWN: Final = """() => {
  const place = document.getElementById("effect");
  const ready = place && !place.hasAttribute("aria-busy") && place.querySelector(".finding, .no-effect");
  return ready && !place.textContent.trim().startsWith("Simulating");
}"""
PATIENCE_MS: Final = 60_000


@dataclass(frozen=True)
class MeasuredVerb:
    """A verb with a target and values; ``before`` and ``after`` are the requests that make its state and end it."""

    kind: str
    name: str
    #: A name, or ``waiting`` and the number of actions that wait.
    target: str
    values: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, str, object] | None = None
    after: tuple[str, str, object] | None = None

    @property
    def title(self) -> str:
        """Kind and name."""
        return f"{self.kind} {self.name}"


_POOL: Final = "/api/v1/pools/default"
_SHARE: Final = {"project": "default", "nominal_units": "2"}
VERBS: Final = (
    MeasuredVerb("pool", "pause", "default"),
    MeasuredVerb("pool", "resume", "default", {}, ("PATCH", _POOL, {"paused": True}),
                 ("PATCH", _POOL, {"paused": False})),
    MeasuredVerb("pool", "policy", "default", {"policy": "paper"}),
    MeasuredVerb("pool", "share", "default", {"resource": "cpu", **_SHARE}),
    MeasuredVerb("pool", "resize", "default", {"nodes": "1"}),
    MeasuredVerb("resource", "limit", API, {"limit_units": "1"}),
    MeasuredVerb("resource", "quota", METERED, {"period": "60 s", "units": "5"}),
    MeasuredVerb("resource", "share", API, _SHARE),
    MeasuredVerb("node", "drain", "n2", {"running": "goes on"}),
    MeasuredVerb("node", "retire", "n2", {"running": "ends"}),
    MeasuredVerb("node", "resume", "n2", {}, ("POST", "/api/v1/nodes/n2/drain", {"reason": "measured"}),
                 ("POST", "/api/v1/nodes/n2/resume", {})),
    MeasuredVerb("task", "pause", f"default/{TASK}"),
    MeasuredVerb("task", "resume", f"default/{TASK}", {}, ("POST", f"/api/v1/tasks/{TASK}/pause", {}),
                 ("POST", f"/api/v1/tasks/{TASK}/resume", {})),
    MeasuredVerb("task", "priority", f"default/{TASK}", {"priority": "3"}),
    MeasuredVerb("task", "cancel", f"default/{TASK}"),
    MeasuredVerb("action", "cancel", "waiting 1"),
    MeasuredVerb("tasks", "priority", f"default/{TASK}", {"priority": "3"}),
    MeasuredVerb("actions", "cancel", "waiting 20"),
)  # fmt: skip


def measure_effects(
    page: Page, base: str, ask: Ask, waiting: list[str], times: int
) -> dict[str, dict[str, Any]]:
    """Return for each verb the slowest of ``times`` openings, from the navigation on; ``waiting``: ids of actions."""
    found = {}
    for verb in VERBS:
        target = verb.target
        if target.startswith("waiting "):
            target = ",".join(waiting[: int(target.removeprefix("waiting "))])
        query = urlencode({"target": target, **verb.values})
        address = f"{base}/act/{verb.kind}/{verb.name}/?{query}"
        with _made(ask, verb):
            seen = [_opened(page, address) for _ in range(times + 1)][1:]
        slowest = max(seen, key=lambda row: (not row["simulated"], row["ms"]))
        found[verb.title] = slowest
        print(f"  {verb.title:20} {slowest}", flush=True)
    return found


@contextmanager
def _made(ask: Ask, verb: MeasuredVerb) -> Iterator[None]:
    """Make the state that a verb needs, and end it."""
    if verb.before is not None:
        ask(*verb.before)
    try:
        yield
    finally:
        if verb.after is not None:
            ask(*verb.after)


def _opened(page: Page, address: str) -> dict[str, Any]:
    answer = page.goto(address, wait_until="commit")
    if answer is None or answer.status != 200:
        raise SystemExit(f"{address} answers {answer.status if answer else 'nothing'}")
    page.wait_for_function(_SHOWN, timeout=PATIENCE_MS)
    taken = round(page.evaluate("performance.now()"))
    effect = page.locator("#effect")
    return {
        "ms": taken,
        "simulated": effect.locator(".finding").count() == 1,
        "says": effect.locator(".finding, .no-effect").first.inner_text(),
    }
