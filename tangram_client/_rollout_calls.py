"""The endpoints of rollouts and of backends of language models: one function each, which returns the `ApiCall`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import quote
from uuid import uuid4

from tangram_client._calls import API, MAX_WAIT_SECONDS, encode, json_of
from tangram_client._core import ApiCall, ApiResponse
from tangram_client.models import Json, Problem

#: Answers in MessagePack: the members of the JSON answer, with arrays of tokens as bytes.
PACKED_TYPE: Final = "application/vnd.tangram.rollout+msgpack"
_ROLLOUTS: Final = f"{API}/rollouts"
_BACKENDS: Final = f"{API}/backends"
#: Rollouts of one request that changes them.
MAX_CHANGED: Final = 1000


@dataclass(frozen=True, slots=True)
class RolloutInfo:
    """A rollout as the server shows it."""

    id: str
    state: str
    outcome: str | None = None
    #: Of a completed rollout; None with the ``reason``.
    reward: float | None = None
    reason: str = ""
    task: str = ""
    handler: str = ""
    instance: str = ""
    group: str | None = None
    sample: int = 0
    #: Stage that it is in.
    stage: str | None = None
    worker: str = ""
    attempt: int = 0
    turns: int = 0
    #: Each has prompt_ids, response_ids, loss_mask, logprobs, weights_version; None until it is finished.
    segments: tuple[Json, ...] | None = None
    #: Everything that came, as it came.
    body: Json = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, body: Json) -> Self:
        plain = {name: body[name] for name in _PLAIN if name in body}
        segments = body.get("segments")
        return cls(**plain, segments=None if segments is None else tuple(segments), body=body)

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.state == "finished"


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """What became of one rollout of a request that changes many."""

    id: str
    #: 202: it is asked; 200: the rollout is finished, and nothing changes; 404: there is none.
    status: int
    #: Of a finished rollout.
    outcome: str | None = None
    #: Why it is refused.
    problem: Problem | None = None

    @classmethod
    def of(cls, body: Json) -> Self:
        status, problem = int(body["status"]), body.get("problem")
        refused = Problem.of(problem, status) if problem else None
        return cls(str(body["id"]), status, body.get("outcome"), refused)


_PLAIN: Final = (
    "id", "state", "outcome", "reward", "reason", "task", "handler", "instance", "group", "sample",
    "stage", "worker", "attempt", "turns",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RolloutPage:
    """A page of finished rollouts; ``next`` is the cursor of the following one."""

    items: tuple[RolloutInfo, ...]
    next: str
    more: bool = False


def submit_rollouts(payload: Mapping[str, Any], key: str | None) -> ApiCall[list[str]]:
    """Submit rollouts; the answer has their ids, by instance, then by sample."""
    return _post(_ROLLOUTS, payload, _ids, key=key)


def get_rollout(
    rollout: str, *, wait_seconds: float | None = None, tokens: bool = True
) -> ApiCall[RolloutInfo]:
    """Ask for a rollout; with a wait, once it is finished or the wait is over."""
    wait = min(wait_seconds or 0.0, MAX_WAIT_SECONDS)
    return ApiCall("GET", _of(rollout), _info, _query(wait, tokens), wait_seconds=wait)


def get_packed(rollout: str) -> ApiCall[bytes]:
    """Ask for a rollout as MessagePack."""
    headers = {"Accept": PACKED_TYPE}
    return ApiCall("GET", _of(rollout), lambda answer: answer.content, headers=headers)


def list_rollouts(**filters: object) -> ApiCall[list[RolloutInfo]]:
    """Read the rollouts that are not finished."""
    params = {name: str(value) for name, value in filters.items() if value is not None}
    return ApiCall("GET", _ROLLOUTS, _infos, params)


def rollout_completions(
    after: str, *, limit: int | None, wait_seconds: float | None, tokens: bool
) -> ApiCall[RolloutPage]:
    """Read the log of finished rollouts after a cursor: ``""`` is its start, ``now`` its end."""
    wait = min(wait_seconds or 0.0, MAX_WAIT_SECONDS)
    params = {"after": after, **_query(wait, tokens)}
    if limit is not None:
        params["limit"] = str(limit)
    return ApiCall("GET", f"{_ROLLOUTS}/completions", _page, params, wait_seconds=wait)


def change_rollout(rollout: str, verb: str, reason: str | None) -> ApiCall[dict[str, Any]]:
    """``cancel`` a rollout, ``park`` or ``resume`` it."""
    return _post(f"{_of(rollout)}/{verb}", {} if reason is None else {"reason": reason}, json_of)


def change_rollouts(
    rollouts: Sequence[str], verb: str, reason: str | None
) -> ApiCall[list[ChangeResult]]:
    """``cancel``, ``park`` or ``resume`` up to `MAX_CHANGED` rollouts; the answer has one result for each."""
    payload = {"ids": list(rollouts), **({} if reason is None else {"reason": reason})}
    return _post(f"{_ROLLOUTS}/{verb}", payload, _changes)


def acknowledge_rollouts(rollouts: Sequence[str]) -> ApiCall[dict[str, Any]]:
    """Have tokens and artefacts of finished rollouts deleted."""
    return _post(f"{_ROLLOUTS}/acknowledge", {"ids": list(rollouts)}, json_of)


def get_artefact(rollout: str, name: str) -> ApiCall[bytes]:
    """Read a file that a stage stored."""
    return ApiCall("GET", f"{_of(rollout)}/artefacts/{quote(name)}", lambda answer: answer.content)


def list_backends() -> ApiCall[list[Json]]:
    """Read the pools of backends."""
    return ApiCall("GET", _BACKENDS, lambda answer: list(answer.json()["pools"]))


def put_backend(payload: Mapping[str, Any]) -> ApiCall[dict[str, Any]]:
    """Add a backend, or change the one of its name."""
    return _post(_BACKENDS, payload, json_of)


def change_backend(pool: str, name: str, verb: str) -> ApiCall[dict[str, Any]]:
    """``drain`` a backend, or ``resume`` it."""
    return _post(f"{_BACKENDS}/{quote(pool, safe='')}/{quote(name, safe='')}/{verb}", {}, json_of)


def remove_backend(pool: str, name: str) -> ApiCall[dict[str, Any]]:
    """Remove a backend."""
    path = f"{_BACKENDS}/{quote(pool, safe='')}/{quote(name, safe='')}"
    return ApiCall("DELETE", path, json_of)


def forget_pool(pool: str) -> ApiCall[dict[str, Any]]:
    """Forget an empty pool."""
    return ApiCall("DELETE", f"{_BACKENDS}/{quote(pool, safe='')}", json_of)


def change_pool(pool: str, verb: str, payload: Mapping[str, Any]) -> ApiCall[dict[str, Any]]:
    """``clear`` a pool, or change its ``balance``."""
    return _post(f"{_BACKENDS}/{quote(pool, safe='')}/{verb}", payload, json_of)


def _post(
    path: str, payload: Mapping[str, Any], read: Any, *, key: str | None = None
) -> ApiCall[Any]:
    headers = {"Idempotency-Key": key or uuid4().hex, "Content-Type": "application/json"}
    return ApiCall("POST", path, read, headers=headers, content=encode(payload))


def _of(rollout: str) -> str:
    return f"{_ROLLOUTS}/{quote(rollout, safe='')}"


def _query(wait: float, tokens: bool) -> dict[str, str]:
    params = {"wait": f"{wait:g}"} if wait > 0 else {}
    return params if tokens else {**params, "segments": "false"}


def _ids(response: ApiResponse) -> list[str]:
    return [str(each["id"]) for each in response.json()["rollouts"]]


def _info(response: ApiResponse) -> RolloutInfo:
    return RolloutInfo.of(response.json())


def _changes(response: ApiResponse) -> list[ChangeResult]:
    return [ChangeResult.of(each) for each in response.json()["items"]]


def _infos(response: ApiResponse) -> list[RolloutInfo]:
    return [RolloutInfo.of(each) for each in response.json()["items"]]


def _page(response: ApiResponse) -> RolloutPage:
    body = response.json()
    items = tuple(RolloutInfo.of(each) for each in body["items"])
    return RolloutPage(items, str(body["next"]), bool(body.get("more", False)))
