"""Models for engine ``torch``, as a user writes them; imported by workers that have torch alone.

Their names say how they behave. All score a text by the same few megabytes of weights.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

#: Large beside what a worker that holds nothing has.
MEBIBYTES = 128
_WIDTH = 1024


class Scorer(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # torch is not here to check
    """Layers of cheap weights, the last of which is tied to the first, and a buffer of another type."""

    def __init__(self, mebibytes: int) -> None:
        super().__init__()
        count = max(2, mebibytes * 2**20 // (_WIDTH * _WIDTH * 4))
        self.layers = torch.nn.ParameterList(
            torch.nn.Parameter(torch.full((_WIDTH, _WIDTH), (n + 1) * 1e-5)) for n in range(count)
        )
        self.layers.append(self.layers[0])
        self.register_buffer("offset", torch.tensor([3], dtype=torch.int16))

    def forward(self, text: str) -> float:
        """Return a number that depends on the text alone."""
        state = torch.zeros(_WIDTH, device=self.offset.device)
        state[0] = float(sum(text.encode()) % 97)
        for weights in (self.layers[0], self.layers[1], self.layers[-1]):
            state = torch.tanh(weights @ state + 0.01)
        return float(state.mean()) + float(self.offset[0])


Handler = Callable[[str, Any], Any]


def scorer(mebibytes: int = 1) -> tuple[Any, Handler]:
    """Score, and crash or run out of memory when asked to."""
    model = Scorer(mebibytes)

    def handle(path: str, body: Any) -> Any:
        if path == "/v1/crash":
            os._exit(9)
        if not isinstance(body, dict) or "text" not in body:
            raise ValueError('give {"text": "…"}')
        return {"score": model(body["text"])}

    return model, handle


def meeting() -> tuple[Any, Handler]:
    """Answer when two requests have arrived: a single one waits for ever."""
    model, handle = scorer()
    both = threading.Barrier(2)

    def handle_together(path: str, body: Any) -> Any:
        both.wait()
        return handle(path, body)

    return model, handle_together


class Layer(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Adds what it makes of its input, with a mask that is given by name."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(width, width)

    def forward(self, state: Any, *, masks: Any) -> Any:
        """Return as many numbers as it is given."""
        return state + torch.tanh(self.inner(state)) * masks["each"][0]


class Layered(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """An embedding, layers, and a head that is tied to the embedding."""

    def __init__(self, layers: int, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embed = torch.nn.Embedding(97, width)
        self.layers = torch.nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = torch.nn.Linear(width, 97, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, numbers: Any) -> Any:
        """Return a score for each of 97 words."""
        state = self.embed(numbers).mean(dim=0)
        masks = {"each": (torch.ones_like(state),)}
        for layer in self.layers:
            state = layer(state, masks=masks)
        return self.head(state)


def layered(layers: int = 6) -> tuple[Any, Handler]:
    """Score by a model of several layers."""
    model = Layered(layers)

    def handle(path: str, body: Any) -> Any:
        device = next(model.parameters()).device
        numbers = torch.tensor([each % 97 for each in body["text"].encode()], device=device)
        return {"score": float(model(numbers).sum())}

    return model, handle


def large() -> tuple[Any, Handler]:
    """As above, so large that its memory differs visibly from that of the program."""
    return scorer(MEBIBYTES)


def changing() -> tuple[Any, Handler, tuple[str, Any]]:
    """Answer its fixed prompt otherwise each time."""
    model, _ = scorer()
    asked: list[str] = []

    def handle(path: str, body: Any) -> Any:
        asked.append(path)
        return {"score": len(asked)}

    return model, handle, ("/v1/score", {"text": "x"})


def writing() -> tuple[Any, Handler]:
    """Write into its own many weights whenever it answers."""
    model, handle = scorer(MEBIBYTES)

    def handle_and_write(path: str, body: Any) -> Any:
        answer = handle(path, body)
        model.layers[0].data.add_(1)
        return answer

    return model, handle_and_write


def corrupting() -> tuple[Any, Handler]:
    """Damage the copy in host memory, as a fault of the machine does."""
    model, handle = scorer()

    def handle_and_damage(path: str, body: Any) -> Any:
        for found in gc.get_objects():
            if type(found).__name__ == "FlatWeights":
                found._host[4096] += 1
        return handle(path, body)

    return model, handle_and_damage


def waiting() -> Any:
    """Take memory and never be ready."""
    held = torch.ones(3 * MEBIBYTES * 2**18)
    while held is not None:
        time.sleep(60)


def dying() -> Any:
    """Run out of memory while it is made."""
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
