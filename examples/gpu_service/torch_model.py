"""A model of PyTorch as a GPU service: `torch.yaml` declares it, its worker imports it.

Its weights are random, drawn from a seed. A model of yours loads them instead, into host memory: where
they are on a GPU, and when, is the worker's business.
"""

from __future__ import annotations

from typing import Any

import torch

WIDTH = 512
LAYERS = 16


def reward() -> tuple[Any, Any, tuple[str, Any]]:
    """Return the model, how it is asked, and a question whose answer never changes."""
    torch.manual_seed(7)
    body = [
        part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
    ]
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(256, WIDTH), *body, torch.nn.Linear(WIDTH, 1))

    def score(path: str, request: Any) -> Any:
        text = request.get("text") if isinstance(request, dict) else None
        if path != "/v1/score" or not isinstance(text, str) or not text:
            raise ValueError('POST {"text": "…"} to /v1/score')
        device = next(model.parameters()).device
        letters = torch.tensor([list(text.encode())], device=device)
        return {"score": float(model(letters))}

    return model, score, ("/v1/score", {"text": "a fixed text"})
