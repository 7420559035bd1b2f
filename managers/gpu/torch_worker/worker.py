"""One model between host and device; see the rules of the package."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from managers.gpu.torch_worker.models import Served
from managers.gpu.torch_worker.split import SplitWeights
from managers.gpu.torch_worker.turns import Turns
from managers.gpu.torch_worker.weights import Copied, FlatWeights, give_back

#: How an error is answered.
STATUS = {"out_of_memory": 507, "answers_changed": 500, "not_resident": 503, "bad_request": 400,
          "failed": 500}  # fmt: skip


class Trouble(Exception):
    """A request that was not fulfilled."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Worker:
    """All methods may be called from many threads; only answers go together, up to ``at_once``."""

    def __init__(
        self, served: Served, device: Any, memory_bytes: int = 0, at_once: int = 1
    ) -> None:
        """``device``: a name, or several for a model that is divided among them. Raises BadSource.

        ``memory_bytes``: the most that weights may take of each; 0 is as much as there is.
        """
        self._served = served
        names = [device] if isinstance(device, str) else list(device)
        self._devices = [torch.device(name) for name in names]
        self._memory_bytes = memory_bytes
        self._turns = Turns(at_once)
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
        """Say where it is, without waiting for anybody."""
        return {
            "state": "resident" if self.weights.resident else "host_resident",
            "device": ", ".join(map(str, self._devices)),
            "weight_bytes": self.weights.nbytes,
            "restored_bytes": self._restored.nbytes,
            "restore_seconds": self._restored.seconds,
        }

    def restore(self) -> dict[str, Any]:
        """Bring the weights onto the device, and see that it answers as before."""
        with self._turns.alone():
            if not self.weights.resident:
                self._fits()
                try:
                    self._restored = self.weights.restore()
                    self._compare()
                except BaseException as error:
                    self.weights.release()
                    self._give_back()
                    raise self._told(error) from error
            return self.state()

    def release(self) -> dict[str, Any]:
        """Free the device's memory."""
        with self._turns.alone():
            self.weights.release()
            return self.state()

    def answer(self, path: str, body: Any) -> Any:
        """Let the model's handler answer."""
        with self._turns.together():
            if not self.weights.resident:
                raise Trouble("not_resident", "its weights are in host memory")
            try:
                return self._ask(path, body)
            except Exception as error:
                raise self._told(error) from error

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
        """Keep torch's allocator to what was declared, so that neighbours keep theirs."""
        for device in self._devices:
            if device.type == "cuda" and self._memory_bytes:
                total = torch.cuda.get_device_properties(device).total_memory
                share = min(1.0, self._memory_bytes / total)
                torch.cuda.set_per_process_memory_fraction(share, device)

    def _give_back(self) -> None:
        for device in self._devices:
            give_back(device)

    def _told(self, error: BaseException) -> BaseException:
        """Return what the asker is to be told."""
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
