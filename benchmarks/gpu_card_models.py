"""Random models and the arithmetic for gpu_card: needs torch and nothing else."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from managers.gpu.torch_worker.weights import FlatWeights, synchronize

_ATTEMPTS = 5


class RandomModel(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # torch is not here to check
    """Square layers of random weights, about ``nbytes`` of them, in host memory."""

    def __init__(self, nbytes: int, seed: int, device: Any) -> None:
        super().__init__()
        on_card = device.type == "cuda"
        self.width = 4096 if on_card else 512
        dtype = torch.bfloat16 if on_card else torch.float32
        count = max(1, nbytes // (self.width**2 * torch.empty(0, dtype=dtype).element_size()))
        generator = torch.Generator(device=device).manual_seed(seed)
        self.layers = torch.nn.ParameterList()
        for _ in range(count):
            weights = torch.randn(self.width, self.width, generator=generator, device=device)
            self.layers.append(
                torch.nn.Parameter((weights / self.width**0.5).to(dtype).cpu(), requires_grad=False)
            )

    def forward(self, state: Any) -> Any:
        """Pass a batch of states through all layers."""
        for weights in self.layers:
            state = torch.tanh(state @ weights) + state
        return state


class Service:
    """A model that comes to the card and leaves it; every restore is checked."""

    def __init__(self, nbytes: int, seed: int, device: Any) -> None:
        self.device = device
        self.model = RandomModel(nbytes, seed, device).eval()
        self.weights = FlatWeights(self.model, device)
        self.restore_seconds: list[float] = []
        #: Restores after which weights or answer were not those of before.
        self.changed = 0
        self._answer = ""

    def restore(self) -> float:
        """Bring it in; return the seconds until it could answer."""
        took = self.weights.restore().seconds
        self.restore_seconds.append(took)
        answer = self.checksum()
        self._answer = self._answer or answer
        self.changed += answer != self._answer or not self.weights.unchanged()
        return took

    def checksum(self) -> str:
        """Return what tells its answer to a fixed question from any other."""
        return hashlib.sha256(repr(self.ask().float().flatten().tolist()).encode()).hexdigest()

    def ask(self) -> Any:
        """Answer one fixed question."""
        first = next(iter(self.model.parameters()))
        question = torch.linspace(-1, 1, self.model.width, device=first.device, dtype=first.dtype)
        with torch.inference_mode():
            return self.model(question.unsqueeze(0))


def timed(work: Callable[[], object], device: Any, attempts: int = _ATTEMPTS) -> float:
    """Return the median seconds that ``work`` takes on an idle device; the first attempt warms up."""
    taken = []
    for _ in range(attempts + 1):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])
