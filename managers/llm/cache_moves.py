"""Moves of a trajectory's cache from one worker of a fleet to another: one adapter for each way that engines have.

| adapter | a move is | proved by |
|---|---|---|
| ``torch`` | the target pulls keys and values from the source (`managers.gpu.torch_worker.cache_exchange`) | real workers |
| ``lmcache`` | ``POST /move`` of an LMCache controller, between instances that are named as the workers are | a stand-in of its HTTP |
| ``shared`` | the route: every worker reads one store (SGLang's HiCache with a storage backend) | a stand-in of its HTTP |
| ``none`` | nothing: the target computes the prompt again | |

Rules
1. A move is made between an answer and the next request of a trajectory, by the caller's order: longest first, one at each end.
2. A move never crosses versions of the weights. A store that workers share does not know versions: it must be flushed with new weights.
3. `CacheMoveFailed` says why; the target then computes the prompt again, and nothing else has changed. LMCache answers a move that found
   nothing with 0 tokens and success: that is a failure here.
4. A cancelled move closes its connection, at which a worker of ``torch`` gives the transfer up. LMCache and a shared store go on by themselves.
5. Token ids pass through a move (LMCache finds a cache by them) and are stored nowhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

import msgspec

from domain.errors import TangramError
from domain.fleets import FleetWorker, TransferAdapter

if TYPE_CHECKING:
    import httpx

#: Longest time for a probe of one worker, and for a move.
PROBE_SECONDS: Final = 5.0
MOVE_SECONDS: Final = 120.0
#: Where LMCache keeps what leaves the GPU.
_LMCACHE_LOCATION: Final = "LocalCPUBackend"
_SHOWN_CHARACTERS: Final = 300
#: As a worker of engine ``torch`` takes it.
_LONGEST_CACHE_NAME: Final = 512


def cache_name(trajectory: str) -> str:
    """Return the name under which workers of engine ``torch`` keep the cache of a trajectory: ASCII, fit for a header."""
    name = quote(trajectory, safe="/")
    if len(name) <= _LONGEST_CACHE_NAME:
        return name
    return hashlib.sha256(trajectory.encode()).hexdigest()


class CacheMoveFailed(TangramError):
    """The cache is not at the target; it computes the prompt again."""

    permanent = False


class CacheMove(msgspec.Struct, frozen=True, gc=False):
    """One move."""

    #: As its requests name it to the worker.
    trajectory: str
    source: FleetWorker
    target: FleetWorker
    #: Tokens of the cache, as the fleet counts them.
    context_tokens: int
    #: Ids of those tokens; only ``lmcache`` needs them.
    token_ids: Sequence[int] = ()


class MoverState(msgspec.Struct, frozen=True, gc=False):
    """What a probe found: whether caches can be moved so between these workers, and what is in the way or was found."""

    adapter: TransferAdapter
    usable: bool
    detail: str


class CacheMover(Protocol):
    """One way to move caches."""

    @property
    def adapter(self) -> TransferAdapter: ...
    async def probe(self, workers: Sequence[FleetWorker]) -> MoverState:
        """Return whether these workers can move caches so. Raises nothing for what they answer."""
        ...

    async def move(self, move: CacheMove) -> int:
        """Move a cache; return the tokens that the target need not compute. Raises CacheMoveFailed."""
        ...


class TorchMover:
    """Between workers of engine ``torch``."""

    adapter: Final = TransferAdapter.TORCH

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def probe(self, workers: Sequence[FleetWorker]) -> MoverState:
        """Ask each worker for its state: all serve one model, and have room for caches."""
        models: set[str] = set()
        for worker in workers:
            try:
                state = await _get(self._client, f"{worker.url}/tangram/state")
            except CacheMoveFailed as error:
                return MoverState(self.adapter, False, f"{worker.name}: {error}")
            if not state.get("cache_limit_bytes"):
                return MoverState(self.adapter, False, f"{worker.name} keeps no caches")
            models.add(str(state.get("model")))
        if len(models) != 1:
            listed = ", ".join(sorted(models)) or "none"
            return MoverState(self.adapter, False, f"the workers have several models: {listed}")
        return MoverState(self.adapter, True, f"caches of {models.pop()} are pulled over HTTP")

    async def move(self, move: CacheMove) -> int:
        """Have the target pull the cache."""
        _check_versions(move)
        path = f"/tangram/caches/{quote(move.trajectory, safe='')}/pull"
        answer = await _post(self._client, move.target.url + path, {"source": move.source.url})
        return _moved(answer, "moved_tokens")


class LmcacheMover:
    """Through the controller of LMCache, whose instances are named as the workers of the fleet are."""

    adapter: Final = TransferAdapter.LMCACHE

    def __init__(self, client: httpx.AsyncClient, controller: str) -> None:
        """``controller``: base address of its HTTP, as ``http://host:9000``; empty: there is none."""
        self._client = client
        self._controller = controller.rstrip("/")

    async def probe(self, workers: Sequence[FleetWorker]) -> MoverState:
        """Ask the controller for the health of each worker's instance."""
        if not self._controller:
            return MoverState(self.adapter, False, "no LMCache controller is declared")
        for worker in workers:
            try:
                answer = await _post(
                    self._client,
                    f"{self._controller}/health",
                    {"instance_id": worker.name},
                    PROBE_SECONDS,
                )
            except CacheMoveFailed as error:
                return MoverState(self.adapter, False, f"instance {worker.name}: {error}")
            if not _healthy(answer):
                return MoverState(
                    self.adapter, False, f"instance {worker.name} is not healthy: {answer}"
                )
        return MoverState(self.adapter, True, f"{len(workers)} instances are registered")

    async def move(self, move: CacheMove) -> int:
        """Ask the controller; 0 tokens are a failure."""
        _check_versions(move)
        if not move.token_ids:
            raise CacheMoveFailed("LMCache finds a cache by its token ids, and none were given")
        body = {
            "old_position": [move.source.name, _LMCACHE_LOCATION],
            "new_position": [move.target.name, _LMCACHE_LOCATION],
            "tokens": list(move.token_ids),
        }
        return _moved(await _post(self._client, f"{self._controller}/move", body), "num_tokens")


class SharedStoreMover:
    """By a store that all workers read: SGLang's HiCache with a storage backend."""

    adapter: Final = TransferAdapter.SHARED

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def probe(self, workers: Sequence[FleetWorker]) -> MoverState:
        """Ask each worker for its store: all must have the same kind of one."""
        stores: set[str] = set()
        for worker in workers:
            try:
                info = await _get(self._client, f"{worker.url}/get_server_info")
            except CacheMoveFailed as error:
                return MoverState(self.adapter, False, f"{worker.name}: {error}")
            store = info.get("hicache_storage_backend")
            if not info.get("enable_hierarchical_cache") or not store:
                return MoverState(
                    self.adapter, False, f"{worker.name} writes to no store that others read"
                )
            stores.add(str(store))
        if len(stores) != 1:
            listed = ", ".join(sorted(stores)) or "none"
            return MoverState(self.adapter, False, f"the workers have several stores: {listed}")
        return MoverState(self.adapter, True, f"all workers read the store {stores.pop()}")

    async def move(self, move: CacheMove) -> int:
        """Change nothing but the route; return what the store may have. The next request's cached tokens show what it had."""
        _check_versions(move)
        return move.context_tokens


class NoMover:
    """No transfer: the target computes the prompt again."""

    adapter: Final = TransferAdapter.NONE

    async def probe(self, workers: Sequence[FleetWorker]) -> MoverState:
        """Always possible."""
        return MoverState(self.adapter, True, "the prompt is computed again on the target")

    async def move(self, move: CacheMove) -> int:
        """Move nothing."""
        return 0


def movers(client: httpx.AsyncClient, controller: str = "") -> Mapping[TransferAdapter, CacheMover]:
    """Return all adapters, in the order in which a probe prefers them. ``controller``: of LMCache."""
    made: Sequence[CacheMover] = (
        TorchMover(client),
        LmcacheMover(client, controller),
        SharedStoreMover(client),
        NoMover(),
    )
    return {mover.adapter: mover for mover in made}


async def choose_mover(
    among: Mapping[TransferAdapter, CacheMover],
    workers: Sequence[FleetWorker],
    declared: TransferAdapter = TransferAdapter.PROBED,
) -> tuple[CacheMover, tuple[MoverState, ...]]:
    """Return the adapter for a fleet's workers, and what each probe found, for its page.

    A declared adapter that is not usable is replaced by ``none``: the workers are not what the configuration says, and the states tell why.
    """
    wanted = list(among) if declared is TransferAdapter.PROBED else [declared]
    states = []
    for adapter in wanted:
        states.append(await among[adapter].probe(workers))
        if states[-1].usable:
            return among[adapter], tuple(states)
    return among[TransferAdapter.NONE], tuple(states)


def _check_versions(move: CacheMove) -> None:
    source, target = move.source.weights_version, move.target.weights_version
    if source != target:
        raise CacheMoveFailed(
            f"{move.source.name} has version {source} of the weights, {move.target.name} has {target}"
        )


def _moved(answer: Mapping[str, Any], member: str) -> int:
    tokens = answer.get(member)
    if type(tokens) is not int or tokens < 0:
        raise CacheMoveFailed(f"the answer has no {member}: {str(answer)[:_SHOWN_CHARACTERS]}")
    if tokens == 0:
        raise CacheMoveFailed(f"{member} is 0: no cache was found, or it could not be sent")
    return tokens


def _healthy(answer: Mapping[str, Any]) -> bool:
    """Say whether an instance works: earlier controllers have one code, later ones a code for each of its processes."""
    codes = answer.get("error_codes", {"": answer.get("error_code")})
    return isinstance(codes, dict) and bool(codes) and all(code == 0 for code in codes.values())


async def _get(client: httpx.AsyncClient, url: str) -> Mapping[str, Any]:
    return await _json(client, client.build_request("GET", url), PROBE_SECONDS)


async def _post(
    client: httpx.AsyncClient, url: str, body: Any, seconds: float = MOVE_SECONDS
) -> Mapping[str, Any]:
    return await _json(client, client.build_request("POST", url, json=body), seconds)


async def _json(
    client: httpx.AsyncClient, request: httpx.Request, seconds: float
) -> Mapping[str, Any]:
    """Return the JSON object of a good answer. Raises CacheMoveFailed."""
    import httpx  # gateways use names of caches alone

    timeout = httpx.Timeout(seconds, connect=PROBE_SECONDS).as_dict()
    request.extensions["timeout"] = timeout
    try:
        answer = await client.send(request)
        found = answer.json() if answer.is_success else None
    except (httpx.HTTPError, ValueError) as error:
        raise CacheMoveFailed(f"{type(error).__name__}: {error}".rstrip(": ")) from error
    if not isinstance(found, dict):
        raise CacheMoveFailed(f"HTTP {answer.status_code}: {answer.text[:_SHOWN_CHARACTERS]}")
    return found
