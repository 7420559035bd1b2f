"""The endpoints of the contract: one function each, which returns the `ApiCall`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

from tangram_client._core import ApiCall, ApiResponse
from tangram_client.errors import InvalidRequestError
from tangram_client.models import ActionView, Batch, Completions, Forks, Page, Problem

T = TypeVar("T")

API = "/api/v1"
#: The server's own limit; longer waits are made of several.
MAX_WAIT_SECONDS = 60.0
MAX_BATCH = 1000
#: Longest time that the server takes for forks, and for those that follow actions or copy files.
FORK_SECONDS = 60.0
FORK_WAIT_SECONDS = 900.0
_YAML = "application/yaml"


def new_key() -> str:
    """Return a fresh Idempotency-Key."""
    return uuid4().hex


def encode(payload: Mapping[str, Any]) -> bytes:
    """Return the JSON of a body. Raises InvalidRequest for NaN and infinities: JSON has none."""
    try:
        return json.dumps(payload, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        detail = f"this cannot be sent: {error}"
        raise InvalidRequestError(Problem(422, code="not_json", detail=detail)) from None


def _action(response: ApiResponse) -> ActionView:
    return ActionView.of(response.json())


def _page(response: ApiResponse) -> Page:
    return Page.of(response.json())


def _nothing(response: ApiResponse) -> None:
    return None


def json_of(response: ApiResponse) -> dict[str, Any]:
    """Return an answer that must be a JSON object."""
    return dict(response.json())


def _segment(name: str) -> str:
    return quote(name, safe="")


def _params(**values: object) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _wait(seconds: float | None) -> float:
    return min(seconds or 0.0, MAX_WAIT_SECONDS)


def _wait_params(seconds: float) -> dict[str, str]:
    return {"wait": f"{seconds:g}"} if seconds > 0 else {}


def _post(
    path: str, read: Callable[[ApiResponse], T], body: bytes = b"{}", **more: Any
) -> ApiCall[T]:
    key = more.pop("key", None) or new_key()
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    return ApiCall("POST", API + path, read, headers=headers, content=body, **more)


def submit_action(
    item: bytes, wait_seconds: float | None = None, key: str | None = None
) -> ApiCall[ActionView]:
    """Submit the JSON of one action; with a wait the answer may be the finished one."""
    wait = _wait(wait_seconds)
    return _post("/actions", _action, item, key=key, params=_wait_params(wait), wait_seconds=wait)


def submit_batch(items: Sequence[bytes], *, key: str | None = None) -> ApiCall[Batch]:
    """Submit the JSON of up to 1,000 actions at once."""
    body = b'{"actions":[' + b",".join(items) + b"]}"
    return _post("/actions/batch", lambda response: Batch.of(response.json()), body, key=key)


def get_action(
    action_id: str, wait_seconds: float | None = None, include: str | None = None
) -> ApiCall[ActionView]:
    """Ask how an action stands; with a wait, once it is finished or the wait is over."""
    wait = _wait(wait_seconds)
    path = f"{API}/actions/{_segment(action_id)}"
    params = {**_wait_params(wait), **({} if include is None else {"include": include})}
    return ApiCall("GET", path, _action, params=params, wait_seconds=wait)


def cancel_action(action_id: str, *, reason: str | None = None) -> ApiCall[ActionView]:
    """Ask for the end of an action; a repeat changes nothing."""
    body = encode({} if reason is None else {"reason": reason})
    return _post(f"/actions/{_segment(action_id)}/cancel", _action, body)


def stream_path(action_id: str) -> str:
    """Return where the answer of a call is read while it comes."""
    return f"{API}/actions/{_segment(action_id)}/stream"


def renew_lease(action_id: str, *, ttl_seconds: float | None = None) -> ApiCall[None]:
    """Keep a lease for another while."""
    body = encode({} if ttl_seconds is None else {"ttl_seconds": ttl_seconds})
    return _post(f"/leases/{_segment(action_id)}/renew", _nothing, body)


def release_lease(action_id: str, said: Mapping[str, Any] | None = None) -> ApiCall[None]:
    """Give a lease back, with what the API said to its holder."""
    return _post(f"/leases/{_segment(action_id)}/release", _nothing, encode(said or {}))


def completions_after(
    after: str, *, limit: int | None = None, wait_seconds: float | None = None
) -> ApiCall[Completions]:
    """Read the log of finished actions after a cursor: ``""`` is its start, ``now`` its end."""
    wait = _wait(wait_seconds)
    return ApiCall(
        "GET",
        f"{API}/completions",
        lambda response: Completions.of(response.json()),
        params=_params(after=after, limit=limit) | _wait_params(wait),
        wait_seconds=wait,
    )


def list_page(noun: str, **filters: object) -> ApiCall[Page]:
    """Read a page of a list: ``actions``, ``trajectories``, ``nodes``, ``pools``, …"""
    return ApiCall("GET", f"{API}/{noun}", _page, params=_params(**filters))


def create_token(payload: Mapping[str, Any]) -> ApiCall[dict[str, Any]]:
    """Create a token; the answer has it, and a repetition does not."""
    return _post("/tokens", json_of, encode(payload))


def renew_token(token_id: str, *, days: int | None = None) -> ApiCall[dict[str, Any]]:
    """Let a token expire later."""
    body = encode({} if days is None else {"days": days})
    return _post(f"/tokens/{_segment(token_id)}/renew", json_of, body)


def revoke_token(token_id: str) -> ApiCall[None]:
    """End a token."""
    return ApiCall("DELETE", f"{API}/tokens/{_segment(token_id)}", _nothing)


def open_trajectory(payload: Mapping[str, Any]) -> ApiCall[dict[str, Any]]:
    """Declare a trajectory before its first action."""
    return _post("/trajectories", json_of, encode(payload))


def fork_trajectory(payload: Mapping[str, Any]) -> ApiCall[Forks]:
    """Open forks of a trajectory; a fork that waits or copies may take minutes."""
    call = _post("/trajectories", lambda answer: Forks.of(answer.json()), encode(payload))
    quick = payload.get("on_busy", "refuse") == "refuse"
    return replace(call, wait_seconds=FORK_SECONDS if quick else FORK_WAIT_SECONDS)


def take_snapshot(
    trajectory: str, payload: Mapping[str, Any], *, project: str | None = None
) -> ApiCall[dict[str, Any]]:
    """Keep the files of a trajectory's environment under a name."""
    path = f"/trajectories/{_segment(trajectory)}/snapshots"
    call = _post(path, json_of, encode(payload), params=_params(project=project))
    quick = payload.get("on_busy", "refuse") == "refuse"
    return replace(call, wait_seconds=FORK_SECONDS if quick else FORK_WAIT_SECONDS)


def park_trajectory(trajectory: str, *, project: str | None = None) -> ApiCall[dict[str, Any]]:
    """Park a trajectory's environment."""
    path = f"/trajectories/{_segment(trajectory)}/park"
    return _post(path, json_of, b"{}", params=_params(project=project))


def list_snapshots(*, project: str | None = None) -> ApiCall[dict[str, Any]]:
    """Read the snapshots of a project."""
    return ApiCall("GET", f"{API}/snapshots", json_of, params=_params(project=project))


def remove_snapshot(name: str, *, project: str | None = None) -> ApiCall[None]:
    """Remove a snapshot."""
    params = _params(project=project)
    return ApiCall("DELETE", f"{API}/snapshots/{_segment(name)}", _nothing, params=params)


def steer_task(
    task: str, verb: str, *, project: str | None = None, body: Mapping[str, object] | None = None
) -> ApiCall[None]:
    """Do ``pause``, ``resume``, ``priority`` or ``cancel`` to a task; repeats change nothing."""
    path = f"/tasks/{_segment(task)}/{verb}"
    return _post(path, _nothing, encode(body or {}), params=_params(project=project))


def evict_service(service: str) -> ApiCall[None]:
    """Let a GPU service leave the chunks where it does not work."""
    return _post(f"/services/{_segment(service)}/evict", _nothing, b"{}")


def control_node(
    node: str, verb: str, *, reason: str | None = None, finishing: bool = False
) -> ApiCall[None]:
    """``drain`` a node, ``resume`` or ``forget`` it."""
    body: dict[str, object] = {} if reason is None else {"reason": reason}
    if finishing:  # a server of an earlier version does not know it
        body["finishing"] = True
    return _post(f"/nodes/{_segment(node)}/{verb}", _nothing, encode(body))


def revoke_node(node: str) -> ApiCall[bool]:
    """Shut a node out; the answer says whether its user of Redis is deleted yet."""
    return _post(f"/nodes/{_segment(node)}/revoke", lambda r: bool(r.json()["user_deleted"]), b"{}")


def create_join_token(payload: Mapping[str, Any]) -> ApiCall[dict[str, Any]]:
    """Create a token by which machines join as nodes; the answer has it, and a repetition does not."""
    return _post("/node-tokens", json_of, encode(payload))


def revoke_join_token(token_id: str) -> ApiCall[None]:
    """End a join token."""
    return ApiCall("DELETE", f"{API}/node-tokens/{_segment(token_id)}", _nothing)


def node_groups() -> ApiCall[tuple[dict[str, Any], ...]]:
    """List the node groups."""
    return ApiCall("GET", f"{API}/node-groups", lambda response: tuple(response.json()["groups"]))


def finish_trajectory(trajectory: str, *, project: str | None = None) -> ApiCall[None]:
    """End a trajectory: its actions are cancelled, its environment goes."""
    path = f"/trajectories/{_segment(trajectory)}/finish"
    return _post(path, _nothing, params=_params(project=project))


def renew_trajectory(
    trajectory: str, payload: Mapping[str, Any], *, project: str | None = None
) -> ApiCall[dict[str, Any]]:
    """Move the end of a trajectory, pause it or resume it."""
    path = f"/trajectories/{_segment(trajectory)}/renew"
    return _post(path, json_of, encode(payload), params=_params(project=project))


def put_file(
    trajectory: str, path: str, content: bytes, *, project: str | None = None
) -> ApiCall[None]:
    """Write a file below the workspace of a trajectory."""
    return ApiCall(
        "PUT",
        _file(trajectory, path),
        _nothing,
        params=_params(project=project),
        headers={"Content-Type": "application/octet-stream"},
        content=content,
    )


def get_file(trajectory: str, path: str, *, project: str | None = None) -> ApiCall[bytes]:
    """Read a file below the workspace of a trajectory."""
    params = _params(project=project)
    return ApiCall("GET", _file(trajectory, path), lambda response: response.content, params=params)


def _file(trajectory: str, path: str) -> str:
    # URL libraries resolve dot segments themselves: the request would silently go elsewhere.
    if not path.strip("/") or {".", ".."} & set(path.split("/")):
        raise InvalidRequestError(
            Problem(422, code="path", detail=f"{path!r} is not a path below the workspace")
        )
    return f"{API}/trajectories/{_segment(trajectory)}/files/{quote(path.lstrip('/'))}"


def status() -> ApiCall[dict[str, Any]]:
    """Read the state of the whole system in one answer."""
    return ApiCall("GET", f"{API}/status", json_of)


def probe(path: str) -> ApiCall[ApiResponse]:
    """Read ``/livez`` or ``/readyz``."""
    return ApiCall("GET", path, lambda response: response)


def checks() -> ApiCall[dict[str, Any]]:
    """Read the findings of the server about its installation."""
    return ApiCall("GET", f"{API}/checks", json_of)


def cluster_checks() -> ApiCall[dict[str, Any]]:
    """Read the findings of the server about its cluster; it tries the doors of all nodes meanwhile."""
    return ApiCall("GET", f"{API}/cluster/checks", json_of, wait_seconds=30.0)


def task_report(task: str, project: str | None, other: str | None) -> ApiCall[dict[str, Any]]:
    """Read the report of a task, compared with ``other`` if one is given."""
    given = {"project": project, "with": other}
    params = {name: value for name, value in given.items() if value}
    return ApiCall("GET", f"{API}/tasks/{_segment(task)}/report", json_of, params=params)


def problems() -> ApiCall[dict[str, Any]]:
    """Read the health of the system and its problems."""
    return ApiCall("GET", f"{API}/problems", json_of)


def export_config() -> ApiCall[str]:
    """Read the configuration in force as YAML."""
    headers = {"Accept": _YAML}
    return ApiCall("GET", f"{API}/config", lambda answer: answer.content.decode(), headers=headers)


def diff_config(text: str, *, prune: bool = False) -> ApiCall[dict[str, Any]]:
    """Ask what a file would change."""
    params = {"prune": "true"} if prune else {}
    headers = {"Content-Type": _YAML}
    content = text.encode()
    return ApiCall("POST", f"{API}/config/diff", json_of, params, headers, content)


def apply_config(
    text: str, *, prune: bool = False, revision: int | None = None
) -> ApiCall[dict[str, Any]]:
    """Put a file in force; with ``revision`` only if that is the one in force now."""
    call = _post("/config/apply", json_of, text.encode(), params={"prune": "true"} if prune else {})
    headers = {**call.headers, "Content-Type": _YAML}
    if revision is not None:
        headers["If-Match"] = f'"rev-{revision}"'
    return ApiCall(call.method, call.path, call.read, call.params, headers, call.content)
