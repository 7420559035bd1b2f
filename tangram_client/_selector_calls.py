"""The endpoints of selectors of parallelism: one function each, which returns the `ApiCall`, and the answers as they are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import quote
from uuid import uuid4

from tangram_client._calls import API, encode, json_of
from tangram_client._core import ApiCall, ApiResponse
from tangram_client.models import Json

_SELECTORS: Final = f"{API}/selectors"
_DEGREE: Final = re.compile(r"tp(\d+)(?:pp(\d+))?(?:dp(\d+))?")


@dataclass(frozen=True, slots=True)
class ParallelismDecision:
    """The degree of a stage that begins now, and why."""

    tp: int
    pp: int
    dp: int
    stage: str
    #: Another degree than before is in force.
    switched: bool
    code: str
    why: str
    #: Speed over that of the degree before, less 1.
    gain: float
    #: Seconds of the stage that it saves, and that the switch costs.
    gain_seconds: float
    switch_cost_seconds: float
    #: Longest context that the next step may reach, in tokens.
    reach: float
    #: Of the profile.
    revision: int
    #: Everything that came, as it came.
    body: Json = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, body: Json) -> Self:
        return cls(**{name: body[name] for name in _DECISION}, body=body)

    @property
    def degree(self) -> str:
        """The degree as ``tp4pp2dp2``."""
        return degree_text(self.body)


_DECISION: Final = (
    "tp", "pp", "dp", "stage", "switched", "code", "why", "gain", "gain_seconds", "switch_cost_seconds", "reach",
    "revision",
)  # fmt: skip


def degree_text(degree: Mapping[str, Any] | None) -> str:
    """Return a degree as ``tp4pp2dp2``, without pp and dp that are 1; "–" for none."""
    if degree is None:
        return "–"
    more = "".join(f"{name}{degree[name]}" for name in ("pp", "dp") if degree[name] != 1)
    return f"tp{degree['tp']}{more}"


def degree_of(text: str | Mapping[str, int]) -> dict[str, int]:
    """Return ``tp4``, ``tp4dp2`` or ``{"tp": 4}`` as tp, pp and dp. Raises ValueError."""
    if not isinstance(text, str):
        return {"tp": 1, "pp": 1, "dp": 1, **text}
    found = _DEGREE.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is no degree: write tp4, tp4dp2 or tp4pp2dp2")
    return dict(zip(("tp", "pp", "dp"), (int(each or 1) for each in found.groups()), strict=True))


def selectors_list() -> ApiCall[tuple[Json, ...]]:
    """List all selectors."""
    return ApiCall("GET", _SELECTORS, lambda response: tuple(response.json()["selectors"]))


def selector_of(name: str) -> ApiCall[Json]:
    """Ask for a selector with its latest loads and switches."""
    return ApiCall("GET", _of(name), json_of)


def selector_profile(name: str) -> ApiCall[Json]:
    """Ask for the profile in use."""
    return ApiCall("GET", f"{_of(name)}/profile", json_of)


def put_selector_profile(name: str, profile: Mapping[str, Any]) -> ApiCall[Json]:
    """Add cells, or replace them."""
    return _write("PUT", f"{_of(name)}/profile", profile)


def selector_decision(name: str, load: Mapping[str, Any]) -> ApiCall[ParallelismDecision]:
    """Ask for the degree of a stage; members that are None are left out."""
    params = {key: _plain(value) for key, value in load.items() if value is not None}
    return ApiCall("GET", f"{_of(name)}/decision", _decision, params)


def observe_load(name: str, load: Mapping[str, Any]) -> ApiCall[Json]:
    """Report the load of a step; members that are None are left out."""
    given = {key: value for key, value in load.items() if value is not None}
    return _write("POST", f"{_of(name)}/observations", given)


def pin_degree(name: str, degree: str | Mapping[str, int], force: bool) -> ApiCall[Json]:
    """Use one degree for all stages."""
    payload = {"parallelism": degree_of(degree), "force": force}
    return _write("POST", f"{_of(name)}/pin", payload)


def unpin_degree(name: str) -> ApiCall[Json]:
    """Select the degree by the load again."""
    return _write("POST", f"{_of(name)}/unpin", {})


def _of(name: str) -> str:
    return f"{_SELECTORS}/{quote(name, safe='')}"


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _write(method: str, path: str, payload: Mapping[str, Any]) -> ApiCall[Json]:
    headers = {"Content-Type": "application/json"}
    if method == "POST":
        headers["Idempotency-Key"] = uuid4().hex
    return ApiCall(method, path, json_of, headers=headers, content=encode(dict(payload)))


def _decision(response: ApiResponse) -> ParallelismDecision:
    return ParallelismDecision.of(response.json())
