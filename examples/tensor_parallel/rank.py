"""One rank: a process that has one shard of the model, and obeys the server over a pipe.

    /usr/bin/python3 -m examples.tensor_parallel.rank FD RANK SHARDS STORE MEMORY_BYTES SHAPE

It is sent ``("load", path, seed)`` and ``("sample", requests)``, and answers ``("done", …)`` or ``("wrong", words)``; without
memory it says so in its errors and ends with `memory_limit.OUT_OF_MEMORY`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import distributed

from examples.rollouts.small_model.transformer import (
    Combine,
    Request,
    Response,
    Shape,
    Transformer,
    alone,
    decode,
    prefill,
)
from examples.tensor_parallel.memory_limit import OUT_OF_MEMORY, MemoryMeter, lacks_memory
from examples.tensor_parallel.shards import load, shard


class Rank:
    """The shard of one rank."""

    def __init__(self, shape: Shape, rank: int, shards: int, meter: MemoryMeter) -> None:
        self._shape, self._rank, self._shards, self._meter = shape, rank, shards, meter
        self._combine: Combine = alone if shards == 1 else _summed
        self._model: Transformer | None = None

    def load(self, path: str, seed: int) -> int:
        """Take the weights of a file, or draw them from a seed; return their version. Raises ValueError."""
        if path:
            version, state = _read(path)
        else:
            version, state = 0, Transformer(self._shape, seed).state_dict()
        if self._model is None:
            self._model = shard(state, self._shape, self._rank, self._shards, self._combine)
        else:
            load(self._model, state, self._shape, self._rank, self._shards)
        return version

    def sample(self, requests: list[Request]) -> tuple[list[Response], float, float, int]:
        """Return the responses to a batch, the seconds of its prompts and of its tokens, and this rank's peak of memory in bytes."""
        assert self._model is not None, "weights come first"
        self._meter.begin()
        began = time.perf_counter()
        batch = prefill(self._model, requests)
        between = time.perf_counter()
        responses = decode(self._model, batch)
        ended = time.perf_counter()
        return responses, between - began, ended - between, self._meter.peak()


def _read(path: str) -> tuple[int, Any]:
    """Return the version and the tensors of a file. Raises ValueError for one that has none."""
    try:
        found = torch.load(path, map_location="cpu")
        return int(found["weights_version"]), found["state"]
    except Exception as error:  # a damaged file may raise anything
        if lacks_memory(error):
            raise
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error


def _summed(x: Any) -> Any:
    distributed.all_reduce(x)
    return x


def obey(rank: Rank, pipe: Connection) -> None:
    """Do what arrives until the server is gone."""
    while True:
        try:
            name, *rest = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("done", getattr(rank, name)(*rest)))
        except (KeyError, TypeError, ValueError, OSError) as error:
            if lacks_memory(error):
                raise MemoryError(str(error)) from error
            pipe.send(("wrong", f"{type(error).__name__}: {error}"))


def main() -> None:
    """Join the group, take the limit, and serve."""
    descriptor, number, shards, store, memory_bytes, shape = sys.argv[1:]
    torch.set_num_threads(1)
    if int(shards) > 1:
        distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=int(number), world_size=int(shards)
        )
        distributed.all_reduce(torch.zeros(1))
    # Libraries of linear algebra reserve their buffers at the first product: they are no memory of the model.
    torch.ones(512, 512) @ torch.ones(512, 512)
    meter = MemoryMeter()
    meter.limit(int(memory_bytes))
    try:
        obey(Rank(Shape(*json.loads(shape)), int(number), int(shards), meter),
             Connection(int(descriptor)))  # fmt: skip
    except (RuntimeError, MemoryError) as error:
        if not lacks_memory(error):
            raise
        sys.stderr.write(f"out of memory: {error}\n")
        sys.stderr.flush()
        os._exit(OUT_OF_MEMORY)


if __name__ == "__main__":
    main()
