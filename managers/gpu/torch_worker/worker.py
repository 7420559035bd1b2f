"""Worker: one model, its restores, releases and requests; rules in the package's docstring."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from managers.gpu.torch_worker.models import Served
from managers.gpu.torch_worker.split import SplitWeights
from managers.gpu.torch_worker.switch_lock import SwitchLock
from managers.gpu.torch_worker.weights import Copied, FlatWeights, give_back

#: HTTP status by kind of error.
STATUS = {"out_of_memory": 507, "answers_changed": 500, "not_resident": 503, "bad_request": 400,
          "failed": 500}  # fmt: skip


class Trouble(Exception):
    """A failed request."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Worker:
    """A model with its weights. Thread-safe; up to ``at_once`` requests run in parallel."""

    def __init__(
        self, served: Served, device: Any, memory_bytes: int = 0, at_once: int = 1
    ) -> None:
        """``device``: a name, or several for a model that is split among them. Raises BadSource.

        ``memory_bytes``: the limit for weights on each; 0: no limit.
        """
        self._served = served
        names = [device] if isinstance(device, str) else list(device)
        self._devices = [torch.device(name) for name in names]
        self._memory_bytes = memory_bytes
        self._lock = SwitchLock(at_once)
        served.module.eval().requires_grad_(False)
        alone = len(self._devices) == 1
        self.weights: Any = (
            FlatWeights(served.module, self._devices[0])
            if alone
            else SplitWeights(served.module, self._devices)
        )
        #: The answer to the fixed prompt after the first restore.
        self._answer = ""
        self._restored = Copied(0, 0.0)
        self._limit()

    def state(self) -> dict[str, Any]:
        """Return the state at once, also during a restore."""
        return {
            "state": "resident" if self.weights.resident else "host_resident",
            "device": ", ".join(map(str, self._devices)),
            "weight_bytes": self.weights.nbytes,
            "restored_bytes": self._restored.nbytes,
            "restore_seconds": self._restored.seconds,
        }

    def restore(self) -> dict[str, Any]:
        """Copy the weights to the device, and check that the model answers as before."""
        with self._lock.exclusive():
            if not self.weights.resident:
                self._fits()
                try:
                    self._restored = self.weights.restore()
                    self._compare()
                except BaseException as error:
                    self.weights.release()
                    self._give_back()
                    raise self._translated(error) from error
            return self.state()

    def release(self) -> dict[str, Any]:
        """Free the device's memory."""
        with self._lock.exclusive():
            self.weights.release()
            return self.state()

    def answer(self, path: str, body: Any) -> Any:
        """Return the answer of the model's handler."""
        with self._lock.shared():
            if not self.weights.resident:
                raise Trouble("not_resident", "its weights are in host memory")
            try:
                return self._ask(path, body)
            except Exception as error:
                raise self._translated(error) from error

    def _ask(self, path: str, body: Any) -> Any:
        with torch.inference_mode():
            return self._served.handler(path, body)

    def _compare(self) -> None:
        if not self.weights.unchanged():
            raise Trouble("answers_changed", "weights on the device are not those of the host")
        if self._served.prompt is None:
            return
        answer = json.dumps(self._ask(*self._served.prompt), sort_keys=True)
        digest = hashlib.sha256(answer.encode()).hexdigest()
        self._answer = self._answer or digest
        if digest != self._answer:
            raise Trouble(
                "answers_changed", "the answer to the fixed prompt is not that of the first restore"
            )

    def _fits(self) -> None:
        needs, may = self.weights.most_nbytes, self._memory_bytes
        if may and needs > may:
            raise Trouble(
                "out_of_memory",
                f"out of memory: its weights take {needs} bytes and {may} are declared: declare"
                " memory_bytes of more than the weights, with room for what it computes",
            )

    def _limit(self) -> None:
        """Limit torch's allocator to the declared memory, so that other services keep theirs."""
        for device in self._devices:
            if device.type == "cuda" and self._memory_bytes:
                total = torch.cuda.get_device_properties(device).total_memory
                share = min(1.0, self._memory_bytes / total)
                torch.cuda.set_per_process_memory_fraction(share, device)

    def _give_back(self) -> None:
        for device in self._devices:
            give_back(device)

    def _translated(self, error: BaseException) -> BaseException:
        """Return the error for the client."""
        if isinstance(error, Trouble) or not isinstance(error, Exception):
            return error
        if isinstance(error, ValueError):
            return Trouble("bad_request", str(error))
        if "out of memory" in str(error).lower():
            self._give_back()
            advice = (
                f"its weights take {self.weights.most_nbytes} bytes: declare memory_bytes with room"
            )
            return Trouble("out_of_memory", f"{error}; {advice} for what it computes")
        return Trouble("failed", f"{type(error).__name__}: {error}")
