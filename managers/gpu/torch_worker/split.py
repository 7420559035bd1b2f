"""One model over several devices: consecutive layers on each, one device after the other.

Rules
1. A *part* stays on one device: each element of the largest list of layers (ModuleList or Sequential), and
   every other module that neither contains that list nor is inside it. Parts keep the order in which they
   were made, and each device has about as many bytes.
2. The arguments of a part are moved to its device first, tensors in tuples, lists and dicts included. So
   inputs belong on the device of the first weights, and outputs are on that of the last part.
3. Weights that are tied over several devices are untied: each of these has a copy.
4. A model whose forward uses weights of several parts directly cannot be split so, nor one without layers.

Devices work one after the other: this is for models that one GPU cannot hold, and makes none faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from managers.gpu.torch_worker.models import BadSource
from managers.gpu.torch_worker.weights import Copied, FlatWeights


class SplitWeights:
    """The weights of one module on several devices, as `FlatWeights` has them on one."""

    def __init__(self, module: Any, devices: Sequence[Any]) -> None:
        """Divide ``module`` among ``devices``. Raises BadSource when that cannot be (rule 4)."""
        groups = _divided(module, len(devices))
        _untie(groups)
        self.shards = []
        for device, parts in zip(devices, groups):
            tensors = [each for part in parts for each in _tensors(part)]
            self.shards.append(FlatWeights(tensors, device))
            for part in parts:
                part.forward = _moving(part.forward, torch.device(device))

    @property
    def resident(self) -> bool:
        """They are on the devices."""
        return all(shard.resident for shard in self.shards)

    @property
    def nbytes(self) -> int:
        """Bytes on all devices."""
        return sum(shard.nbytes for shard in self.shards)

    @property
    def most_nbytes(self) -> int:
        """Bytes on the fullest device."""
        return max(shard.nbytes for shard in self.shards)

    def restore(self) -> Copied:
        """Copy them to all devices in parallel. Raises torch's own error when memory is short."""
        began = time.perf_counter()
        with ThreadPoolExecutor(len(self.shards)) as pool:
            works = [pool.submit(shard.restore) for shard in self.shards]
        return Copied(sum(work.result().nbytes for work in works), time.perf_counter() - began)

    def rehash(self) -> None:
        """Take note of new values in the host's copies."""
        for shard in self.shards:
            shard.rehash()

    def unchanged(self) -> bool:
        """Say whether the weights on the devices have the checksums of the host's copy."""
        return all(shard.unchanged() for shard in self.shards)

    def release(self) -> int:
        """Free the devices' memory; return how much."""
        return sum(shard.release() for shard in self.shards)


def _divided(module: Any, count: int) -> list[list[Any]]:
    """Return the parts of ``module`` for each of ``count`` devices."""
    layers = _layers(module)
    if layers is None or len(layers) < count:
        raise BadSource(f"a model on {count} GPUs needs a list of at least {count} layers")
    parts = list(_parts(module, layers))
    sizes = [sum(_nbytes(each) for each in _tensors(part)) for part in parts]
    total, before = max(1, sum(sizes)), 0
    groups: list[list[Any]] = [[] for _ in range(count)]
    for part, size in zip(parts, sizes):
        groups[min(count - 1, int((before + size / 2) * count / total))].append(part)
        before += size
    if not all(groups):
        raise BadSource(f"the layers of this model cannot be divided among {count} GPUs")
    if direct := [name for name, _ in _direct(module, layers)]:
        raise BadSource(f"weights beside its layers cannot be divided: {', '.join(direct)}")
    return groups


def _untie(groups: list[list[Any]]) -> None:
    """Give each group tensors of its own: a tensor is on one device (rule 3)."""
    owners: dict[int, int] = {}
    copies: dict[tuple[int, int], Any] = {}
    for number, parts in enumerate(groups):
        for each in (inner for part in parts for inner in part.modules()):
            for table in (each._parameters, each._buffers):
                for name, tensor in table.items():
                    if tensor is None or owners.setdefault(id(tensor), number) == number:
                        continue
                    key = id(tensor), number
                    if key not in copies:
                        copy = tensor.detach()
                        parameter = isinstance(tensor, torch.nn.Parameter)
                        copies[key] = (
                            torch.nn.Parameter(copy, requires_grad=False) if parameter else copy
                        )
                    table[name] = copies[key]


def _layers(module: Any) -> Any:
    """Return the list of layers with the most bytes; None where there is none."""
    lists = [
        each
        for each in module.modules()
        if isinstance(each, (torch.nn.ModuleList, torch.nn.Sequential))
    ]
    return max(lists, default=None, key=lambda each: sum(map(_nbytes, _tensors(each))))


def _parts(module: Any, layers: Any) -> Iterator[Any]:
    """Yield the parts in order of creation (rule 1)."""
    if module is layers:
        yield from layers
    elif any(each is layers for each in module.modules()):
        for child in module.children():
            yield from _parts(child, layers)
    else:
        yield module


def _direct(module: Any, layers: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of modules that contain the layers: they belong to no part."""
    for each in module.modules():
        if each is not layers and any(inner is layers for inner in each.modules()):
            yield from each.named_parameters(recurse=False)
            yield from each.named_buffers(recurse=False)


def _tensors(part: Any) -> list[Any]:
    return [*part.parameters(), *part.buffers()]


def _nbytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _moving(forward: Callable[..., Any], device: Any) -> Callable[..., Any]:
    """Return ``forward``, called with everything on ``device`` (rule 2)."""

    def moved(*args: Any, **kwargs: Any) -> Any:
        return forward(*_moved(args, device), **_moved(kwargs, device))

    return moved


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(each, device) for key, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_moved(each, device) for each in value)
    return value
