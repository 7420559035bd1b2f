"""Models that a service can name: a callable of the user, or a Hugging Face architecture.

A callable, ``module:function``, takes nothing and returns ``(module, handler)`` or ``(module, handler,
prompt)``. ``handler(path, body)`` takes the request's path and its JSON, and returns a JSON value; it
raises ValueError for an invalid request. ``prompt`` is a ``(path, body)`` whose answer is the same
after each restore. Inputs belong on ``next(module.parameters()).device``.

Any other source is a model of `transformers`: a folder that ``save_pretrained`` wrote, or a JSON file
of a configuration, whose weights are drawn from a seed. Nothing is downloaded. The architecture is the
one that the configuration names, else a causal language model. It is served as
`managers.gpu.torch_worker.language_model` says.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from managers.gpu.torch_worker.language_model import LanguageModel
from managers.gpu.torch_worker.token_texts import FolderTokenizer


class BadSource(Exception):
    """The source that the service declares cannot be used."""


class Served(NamedTuple):
    """A model and the handler of its requests."""

    module: Any
    handler: Callable[[str, Any], Any]
    #: Path and body of a request whose answer never changes.
    prompt: tuple[str, Any] | None = None

    @property
    def language(self) -> LanguageModel | None:
        """The model as one of tokens; None for a callable's."""
        return self.handler if isinstance(self.handler, LanguageModel) else None


#: Seed of the weights of a configuration, unless a request for new weights gives another.
SEED = 7


def load(source: str, seed: int = SEED) -> Served:
    """Return the model, in host memory. Raises BadSource.

    ``seed``: of the weights of a configuration; other sources have their own.
    """
    if ":" not in source:
        return _load_transformers(source, seed)
    where, _, name = source.partition(":")
    try:
        build = getattr(importlib.import_module(where), name)
    except (ImportError, AttributeError) as error:
        raise BadSource(f"{source} is not there: {error}") from error
    made = build()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not callable(made[1]):
        raise BadSource(f"{source} must return (module, handler) or (module, handler, prompt)")
    return Served(*made)


def _load_transformers(source: str, seed: int) -> Served:
    """Return the model in host memory. Raises BadSource."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    try:
        import transformers
    except ImportError as error:
        raise BadSource(f"{source} is a model of transformers, which is not there") from error
    path = Path(source)
    if path.is_dir():
        config = transformers.AutoConfig.from_pretrained(source, local_files_only=True)
        architecture = _architecture(transformers, config)
        module = architecture.from_pretrained(source, local_files_only=True)
    elif path.is_file():
        values = json.loads(path.read_text())
        config = transformers.AutoConfig.for_model(**values)
        torch.manual_seed(seed)
        architecture = _architecture(transformers, config)
        make = getattr(architecture, "from_config", None) or architecture._from_config
        module = make(config)
    else:
        raise BadSource(f"{source} is neither module:function nor a folder or file on this node")
    tokenizer = None
    if path.is_dir():
        with contextlib.suppress(OSError, ValueError):
            found = transformers.AutoTokenizer.from_pretrained(source, local_files_only=True)
            tokenizer = FolderTokenizer(found)
    language = LanguageModel(module, tokenizer, path.name)
    return Served(module, language, ("/v1/score", {"input": [1, 2, 3, 4]}))


def _architecture(transformers: Any, config: Any) -> Any:
    for name in getattr(config, "architectures", None) or ():
        found = getattr(transformers, name, None)
        if found is not None:
            return found
    return transformers.AutoModelForCausalLM
