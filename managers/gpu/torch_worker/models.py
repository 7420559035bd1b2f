"""Finding the model that a service names: a callable of the user, or a Hugging Face architecture.

A callable, ``module:function``, takes nothing and returns ``(module, handler)`` or ``(module, handler,
prompt)``. ``handler(path, body)`` gets the request's path and its JSON, and returns what becomes JSON;
it raises ValueError for a request that makes no sense. ``prompt`` is a ``(path, body)`` whose answer is
the same after each restore. Inputs belong on ``next(module.parameters()).device``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple


class BadSource(Exception):
    """What the service names as its model cannot be used."""


class Served(NamedTuple):
    """A model and how it is asked."""

    module: Any
    handler: Callable[[str, Any], Any]
    #: Path and body of a request whose answer never changes.
    prompt: tuple[str, Any] | None = None


def load(source: str) -> Served:
    """Return the model, in host memory. Raises BadSource."""
    if ":" not in source:
        from managers.gpu.torch_worker import huggingface

        return huggingface.load(source)
    where, _, name = source.partition(":")
    try:
        build = getattr(importlib.import_module(where), name)
    except (ImportError, AttributeError) as error:
        raise BadSource(f"{source} is not there: {error}") from error
    made = build()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not callable(made[1]):
        raise BadSource(f"{source} must return (module, handler) or (module, handler, prompt)")
    return Served(*made)
