"""Other weights for a model that is served: what a trainer has made of it, read while the present ones go on serving.

A request for new weights has a JSON object:

| member | |
|---|---|
| ``weights_version`` | the number of the new weights; that of the present ones changes nothing |
| ``source`` | a folder or a configuration of the same architecture; absent: the declared one, read again |
| ``seed`` | of a configuration |
| ``mode`` | ``drain``: running answers end first (the default); ``abort``: they end with the error ``aborted`` |

New weights have the names, shapes and types of the present ones, or they are refused and nothing changes. A source of the kind
``module:function`` is the declared one: a request names no other code.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import torch

from managers.gpu.torch_worker.models import SEED, BadSource, load

MODES = ("drain", "abort")
#: Words that are summed together.
_SUMMED = 2**20


class WeightsRequest(NamedTuple):
    """A request for new weights."""

    version: int
    source: str
    seed: int
    aborts: bool


def weights_request(body: Any, declared: str) -> WeightsRequest:
    """Return what ``body`` asks for. Raises ValueError, which names the member."""
    if not isinstance(body, dict):
        raise ValueError("give a JSON object")
    version, source = body.get("weights_version"), body.get("source", declared)
    seed, mode = body.get("seed", SEED), body.get("mode", "drain")
    if type(version) is not int or not 0 <= version < 2**53:
        raise ValueError("weights_version is a number from 0")
    if not isinstance(source, str) or not source:
        raise ValueError("source is a folder or file on this node")
    if ":" in source and source != declared:
        raise ValueError("source: other code than the declared one is not loaded")
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise ValueError("seed is a number from 0")
    if mode not in MODES:
        raise ValueError(f"mode is {' or '.join(MODES)}")
    return WeightsRequest(version, source, seed, mode == "abort")


def read_weights(wanted: WeightsRequest, module: Any) -> dict[str, Any]:
    """Return the new tensors by name, in host memory. Raises BadSource when they are not those of ``module``."""
    try:
        found = load(wanted.source, wanted.seed).module.state_dict()
    except BadSource:
        raise
    except Exception as error:  # libraries raise what they like for a damaged file
        raise BadSource(f"{wanted.source}: {type(error).__name__}: {error}") from error
    present = module.state_dict()
    if missing := sorted(present.keys() ^ found.keys()):
        raise BadSource(f"{wanted.source} has other weights: {', '.join(missing[:3])} …")
    for name, tensor in present.items():
        if (tensor.shape, tensor.dtype) != (found[name].shape, found[name].dtype):
            raise BadSource(
                f"{wanted.source}: {name} is {found[name].dtype} {list(found[name].shape)},"
                f" not {tensor.dtype} {list(tensor.shape)}"
            )
    return dict(found)


def replace_weights(module: Any, values: dict[str, Any]) -> None:
    """Write new values into the tensors of ``module``."""
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            tensor.copy_(values[name])


def fingerprint(module: Any) -> str:
    """Return a checksum of the weights that does not depend on where or how they are laid out."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
        words = flat.view(torch.int32) if flat.numel() % 4 == 0 else flat
        sums = [piece.sum(dtype=torch.int64) for piece in words.split(_SUMMED)]
        numbers = [int(each) for each in sums]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} {numbers}\n".encode())
    return digest.hexdigest()
