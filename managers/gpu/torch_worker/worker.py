"""Worker: one model, its restores, releases, requests and new weights; rules in the package's docstring."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from managers.gpu.torch_worker.cache_wire import CacheOrigin
from managers.gpu.torch_worker.generation import Caller
from managers.gpu.torch_worker.models import BadSource, Served
from managers.gpu.torch_worker.new_weights import (
    WeightsRequest,
    fingerprint,
    read_weights,
    replace_weights,
    weights_request,
)
from managers.gpu.torch_worker.split import SplitWeights
from managers.gpu.torch_worker.switch_lock import SwitchLock
from managers.gpu.torch_worker.weights import Copied, FlatWeights, give_back

#: HTTP status by kind of error.
STATUS = {"out_of_memory": 507, "answers_changed": 500, "not_resident": 503, "bad_request": 400,
          "failed": 500, "aborted": 503, "bad_weights": 422, "no_cache": 404, "cache_mismatch": 409,
          "cache_too_large": 413, "source_failed": 502}  # fmt: skip
#: Limit of caches where no memory is declared.
CACHE_BYTES = 256 * 2**20


class Trouble(Exception):
    """A failed request."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Declared(NamedTuple):
    """What the start of a worker declares."""

    source: str = ""
    #: Name of the model; empty: that of its source.
    model: str = ""
    #: Number of the weights that the source has.
    weights_version: int = 0
    #: Limit for weights on each device; 0: none.
    memory_bytes: int = 0
    #: Limit of all caches; None: half of what the weights leave of `memory_bytes`, else `CACHE_BYTES`.
    cache_bytes: int | None = None
    at_once: int = 1


class Worker:
    """A model with its weights. Thread-safe; up to ``at_once`` requests run in parallel."""

    def __init__(self, served: Served, device: Any, declared: Declared) -> None:
        """``device``: a name, or several for a model that is split among them. Raises BadSource."""
        self._served = served
        names = [device] if isinstance(device, str) else list(device)
        self._devices = [torch.device(name) for name in names]
        self._declared = declared
        self._lock = SwitchLock(declared.at_once)
        self._reading = threading.Lock()
        served.module.eval().requires_grad_(False)
        alone = len(self._devices) == 1
        self.weights: Any = (
            FlatWeights(served.module, self._devices[0])
            if alone
            else SplitWeights(served.module, self._devices)
        )
        self.weights_version = declared.weights_version
        self._fingerprint = ""
        #: Counts how often running answers were aborted.
        self._aborts = 0
        #: The answer to the fixed prompt after the first restore.
        self._answer = ""
        self._restored = Copied(0, 0.0)
        self._limit()
        if served.language is not None:
            served.language.name = declared.model or served.language.name
            served.language.caches.limit_bytes = self._cache_limit()

    @property
    def speaks(self) -> bool:
        """It is a model of tokens."""
        return self._served.language is not None

    @property
    def language(self) -> Any:
        """The model as one of tokens. Raises Trouble for a callable's."""
        if self._served.language is None:
            raise Trouble("no_cache", "this model is a callable's: it has no tokens and no caches")
        return self._served.language

    def state(self) -> dict[str, Any]:
        """Return the state at once, also during a restore."""
        state = {
            "state": "resident" if self.weights.resident else "host_resident",
            "device": ", ".join(map(str, self._devices)),
            "weight_bytes": self.weights.nbytes,
            "restored_bytes": self._restored.nbytes,
            "restore_seconds": self._restored.seconds,
            "weights_version": self.weights_version,
        }
        language = self._served.language
        if language is not None:
            state["model"] = language.name
            state["prefilled_tokens"] = language.prefilled_tokens
            state["cache_bytes"] = language.caches.nbytes
            state["cache_limit_bytes"] = language.caches.limit_bytes
        return state

    def models(self) -> dict[str, Any]:
        """Return the model as a list of OpenAI's shape."""
        listed = {"id": self.language.name, "object": "model", "created": 0, "owned_by": "tangram"}
        listed["max_model_len"] = self.language.context_tokens
        listed["weights_version"] = self.weights_version
        return {"object": "list", "data": [listed]}

    def restore(self) -> dict[str, Any]:
        """Copy the weights to the device, and check that the model answers as before."""
        with self._lock.exclusive():
            if not self.weights.resident:
                self._restore()
            return self.state()

    def release(self) -> dict[str, Any]:
        """Free the device's memory, that of the caches as well."""
        with self._lock.exclusive():
            self._drop_caches()
            self.weights.release()
            return self.state()

    def load_weights(self, body: Any) -> dict[str, Any]:
        """Replace the weights; caches are dropped. Raises Trouble, and nothing has changed unless a restore failed."""
        try:
            wanted = weights_request(body, self._declared.source)
            with self._reading:
                if wanted.version != self.weights_version:
                    self._replace(wanted, read_weights(wanted, self._served.module))
        except BadSource as error:
            raise Trouble("bad_weights", str(error)) from error
        except ValueError as error:
            raise Trouble("bad_request", str(error)) from error
        return self.state()

    def answer(self, path: str, body: Any, caller: Caller) -> Any:
        """Return the answer of the model's handler; None: it was sent as events."""
        with self._lock.shared():
            if not self.weights.resident:
                raise Trouble("not_resident", "its weights are in host memory")
            asking = _AbortableCaller(caller, self)
            try:
                try:
                    return self._ask(path, body, asking)
                except RuntimeError as error:
                    if not self._caches_are_in_the_way(error, asking):
                        raise
                return self._ask(path, body, asking)
            except Exception as error:
                raise self._translated(error) from error

    @contextmanager
    def unchanged(self) -> Iterator[CacheOrigin]:
        """Keep the weights on their device; yield what caches of them are of."""
        with self._lock.beside():
            if not self.weights.resident:
                raise Trouble(
                    "not_resident", "its weights are in host memory, and it has no caches"
                )
            self._fingerprint = self._fingerprint or fingerprint(self._served.module)
            yield CacheOrigin(self.language.name, self.weights_version, self._fingerprint)

    @property
    def aborts(self) -> int:
        """How often running answers were aborted."""
        return self._aborts

    def _abort(self) -> None:
        self._aborts += 1

    def _replace(self, wanted: WeightsRequest, values: dict[str, Any]) -> None:
        with self._lock.exclusive(self._abort if wanted.aborts else None):
            resident = self.weights.resident
            self._drop_caches()
            self.weights.release()
            replace_weights(self._served.module, values)
            self.weights.rehash()
            self.weights_version, self._fingerprint, self._answer = wanted.version, "", ""
            if resident:
                self._restore()

    def _restore(self) -> None:
        self._fits()
        try:
            self._restored = self.weights.restore()
            self._compare()
        except BaseException as error:
            self.weights.release()
            self._give_back()
            raise self._translated(error) from error

    def _caches_are_in_the_way(self, error: RuntimeError, caller: Caller) -> bool:
        """Drop the caches where a request found no memory beside them; return whether it can be asked again."""
        kept = self._served.language is not None and self._served.language.caches.nbytes
        if not kept or caller.begun or not _says_out_of_memory(error):
            return False
        self._drop_caches()
        self._give_back()
        return True

    def _drop_caches(self) -> None:
        if self._served.language is not None:
            self._served.language.caches.clear()

    def _ask(self, path: str, body: Any, caller: Caller) -> Any:
        with torch.inference_mode():
            if self._served.language is not None:
                return self._served.language.answer(path, body, caller)
            return self._served.handler(path, body)

    def _compare(self) -> None:
        if not self.weights.unchanged():
            raise Trouble("answers_changed", "weights on the device are not those of the host")
        if self._served.prompt is None:
            return
        answer = json.dumps(self._ask(*self._served.prompt, Caller()), sort_keys=True)
        digest = hashlib.sha256(answer.encode()).hexdigest()
        self._answer = self._answer or digest
        if digest != self._answer:
            raise Trouble(
                "answers_changed", "the answer to the fixed prompt is not that of the first restore"
            )

    def _fits(self) -> None:
        needs, may = self.weights.most_nbytes, self._declared.memory_bytes
        if may and needs > may:
            raise Trouble(
                "out_of_memory",
                f"out of memory: its weights take {needs} bytes and {may} are declared: declare"
                " memory_bytes of more than the weights, with room for what it computes",
            )

    def _cache_limit(self) -> int:
        declared = self._declared
        if declared.cache_bytes is not None:
            return declared.cache_bytes
        if not declared.memory_bytes:
            return CACHE_BYTES
        left: int = declared.memory_bytes - self.weights.most_nbytes
        return max(0, left) // 2

    def _limit(self) -> None:
        """Limit torch's allocator to the declared memory, so that other services keep theirs."""
        for device in self._devices:
            if device.type == "cuda" and self._declared.memory_bytes:
                total = torch.cuda.get_device_properties(device).total_memory
                share = min(1.0, self._declared.memory_bytes / total)
                torch.cuda.set_per_process_memory_fraction(share, device)

    def _give_back(self) -> None:
        for device in self._devices:
            give_back(device)

    def _translated(self, error: BaseException) -> BaseException:
        """Return the error for the client."""
        if isinstance(error, (Trouble, ConnectionError)) or not isinstance(error, Exception):
            return error
        if isinstance(error, ValueError):
            return Trouble("bad_request", str(error))
        if _says_out_of_memory(error):
            self._give_back()
            advice = (
                f"its weights take {self.weights.most_nbytes} bytes: declare memory_bytes with room"
            )
            return Trouble("out_of_memory", f"{error}; {advice} for what it computes")
        return Trouble("failed", f"{type(error).__name__}: {error}")


def _says_out_of_memory(error: BaseException) -> bool:
    return "out of memory" in str(error).lower()


class _AbortableCaller(Caller):
    """A caller whose answer the worker may end."""

    def __init__(self, caller: Caller, worker: Worker) -> None:
        self.trajectory = caller.trajectory
        self._caller, self._worker, self._began = caller, worker, worker.aborts

    @property
    def begun(self) -> bool:
        """An event was sent."""
        return self._caller.begun

    def check(self) -> None:
        """Raise what ends the request."""
        if self._worker.aborts != self._began:
            raise Trouble("aborted", "new weights did not wait for this answer: send it again")
        self._caller.check()

    def event(self, data: dict[str, Any]) -> None:
        """Send one event."""
        self._caller.event(data)
