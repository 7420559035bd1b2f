"""Exchange of caches between two workers of one model: one exports, the other accepts, or pulls and has the first drop its own.

Rules
1. A transfer holds no lock of the model: it is sent from a copy in host memory, and received into one. Requests go on.
2. What is accepted was computed by the weights that the worker has when the transfer *ends*; new weights meanwhile refuse it.
3. A transfer that fails, breaks off, or whose client is gone leaves the target as it was, and the source with its cache.
4. The source drops the cache that was pulled, and no later one.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import torch

from managers.gpu.torch_worker.cache_wire import (
    CacheExpectation,
    CacheRefused,
    ExportedCache,
    LayerForm,
    Read,
    digest_of,
    forms_of,
    receive,
)
from managers.gpu.torch_worker.generation import CallerGone
from managers.gpu.torch_worker.kv_caches import LONGEST_NAME
from managers.gpu.torch_worker.worker import Trouble, Worker

PATH = "/tangram/caches"
#: Longest pause of the other worker.
_PAUSE_SECONDS = 30.0
_WORDS_BYTES = 2000


class CacheExchange:
    """Caches of one worker, as other workers and the control center see them."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        #: What all caches of the model look like, and the device of each layer.
        self._looks: tuple[Sequence[LayerForm], Sequence[Any]] | None = None

    def listed(self) -> dict[str, Any]:
        """Return all caches, the one unused for longest first, and the limit of their bytes."""
        caches = self._worker.language.caches
        return {
            "caches": caches.listed(),
            "bytes": caches.nbytes,
            "limit_bytes": caches.limit_bytes,
            "weights_version": self._worker.weights_version,
        }

    def export(self, trajectory: str) -> ExportedCache:
        """Return a trajectory's cache as bytes."""
        with self._worker.unchanged() as origin:
            cache = self._worker.language.caches.get(_named(trajectory))
            if cache is None:
                raise Trouble("no_cache", f"there is no cache of {trajectory!r}")
            return ExportedCache(cache, origin)

    def accept(
        self, trajectory: str, read: Read, length: int, check: Callable[[], None] | None = None
    ) -> dict[str, Any]:
        """Keep the cache that a body has; return its tokens and bytes. ``check`` raises when it is not wanted any more."""
        caches = self._worker.language.caches
        name = _named(trajectory)
        with self._worker.unchanged() as origin:
            forms, devices = self._layout()
        expected = CacheExpectation(
            origin, forms, self._worker.language.context_tokens, caches.limit_bytes
        )
        try:
            cache = receive(read, length, expected)
        except CacheRefused as refused:
            raise Trouble(refused.kind, str(refused)) from None
        if check is not None:
            check()
        with self._worker.unchanged() as now:
            if now != origin:
                raise Trouble("cache_mismatch", "weights_version: it changed during the transfer")
            layers = [
                (key.to(device), value.to(device))
                for (key, value), device in zip(cache.layers, devices)
            ]
            if not caches.keep(name, cache._replace(layers=layers)):
                raise Trouble("cache_too_large", f"the caches have {caches.limit_bytes} bytes")
        return {"tokens": len(cache.ids), "bytes": cache.nbytes}

    def pull(self, trajectory: str, body: Any, check: Callable[[], None]) -> dict[str, Any]:
        """Fetch a trajectory's cache from the worker that ``body`` names; ``keep_source``: a copy, not a move.

        ``check`` raises when the client is gone.
        """
        host, port = _source(body)
        with self._worker.unchanged():  # else the source is not asked
            self._layout()
        began = time.perf_counter()
        path = f"{PATH}/{quote(_named(trajectory), safe='')}"
        connection = http.client.HTTPConnection(host, port, timeout=_PAUSE_SECONDS)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            if response.status != 200:
                raise _failed_source(response.status, response.read(_WORDS_BYTES))

            def read(count: int) -> bytes:
                check()
                return response.read(count)

            length = int(response.headers["Content-Length"])
            found = self.accept(trajectory, read, length, check)
            dropped = not body.get("keep_source") and self._drop_there(connection, path, trajectory)
        except (OSError, http.client.HTTPException, TypeError) as error:
            if isinstance(error, CallerGone):
                raise
            raise Trouble("source_failed", f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        return {
            "moved_tokens": found["tokens"],
            "bytes": found["bytes"],
            "source_dropped": dropped,
            "seconds": time.perf_counter() - began,
        }

    def drop(self, trajectory: str, digest: str = "") -> dict[str, Any]:
        """Drop a trajectory's cache, if it has the ids of ``digest`` where one is given."""
        caches = self._worker.language.caches
        cache = caches.get(_named(trajectory))
        same = cache is not None and (not digest or digest_of(cache.ids) == digest)
        return {"dropped": bool(same) and caches.drop(trajectory, cache)}

    def _drop_there(
        self, connection: http.client.HTTPConnection, path: str, trajectory: str
    ) -> bool:
        """Have the source drop what was pulled; False when it does not: its bound drops it later."""
        mine = self._worker.language.caches.get(trajectory)
        if mine is None:
            return False
        try:
            connection.request("DELETE", f"{path}?ids_sha256={digest_of(mine.ids)}")
            answer = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return False
        return bool(answer.get("dropped"))

    def _layout(self) -> tuple[Sequence[LayerForm], Sequence[Any]]:
        if self._looks is None:
            with torch.inference_mode():
                example = self._worker.language.layers()
            if example is None:
                raise Trouble("no_cache", "this model has no keys and values of each token")
            # No tensor is kept: a worker that sleeps has no memory of its device.
            self._looks = forms_of(example), [key.device for key, _ in example]
        return self._looks


def _named(trajectory: str) -> str:
    if not 0 < len(trajectory) <= LONGEST_NAME:
        raise Trouble("bad_request", f"a trajectory's name has 1 to {LONGEST_NAME} characters")
    return trajectory


def _source(body: Any) -> tuple[str, int]:
    """Return host and port of the worker to pull from."""
    stated = body.get("source") if isinstance(body, dict) else None
    try:
        parts = urlsplit(stated if isinstance(stated, str) else "")
        if parts.scheme == "http" and parts.hostname and parts.port and not parts.path.strip("/"):
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise Trouble("bad_request", "source is the address of a worker: http://HOST:PORT")


def _failed_source(status: int, said: bytes) -> Trouble:
    try:
        answer = json.loads(said)
        kind, detail = answer["error"], answer["detail"]
    except (ValueError, KeyError, TypeError):
        kind, detail = "", said.decode(errors="replace")
    known = kind if kind in ("no_cache", "not_resident") else "source_failed"
    return Trouble(known, f"the source answered {status}: {detail}")
