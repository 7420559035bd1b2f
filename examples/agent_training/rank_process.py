"""One rank of the trainer: a process that computes on its rows of a batch, and exchanges them with the other ranks.

    /usr/bin/python3 -m examples.agent_training.rank_process --rank 0 --ranks 4 --meeting FILE --run FOLDER

Orders are lines of JSON on the standard input, answers lines of JSON on the standard output: ``{"phase": NAME}`` when a phase begins, and
``{"done": …}`` at the end of an order. The first half of the ranks computes the reference's log-probabilities (*experience*), the other
half updates; a single rank does both.

Rules
1. The rank ends when its input ends, wherever it is: a trainer that was killed leaves no rank.
2. A step begins with the weights of the checkpoint that its order names; they are read where the rank has others.
3. The first of the ranks that update stores weights and optimizer in the folder that the order names, and commits nothing.
4. An error ends the rank: the trainer starts all ranks again.

Needs PyTorch (1.13 or later) and numpy, and nothing else of the trainer's Python.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed

from dispatcher.batches import pull
from examples.agent_training.checkpoints import OPTIMIZER, WEIGHTS
from examples.agent_training.dispatched_rows import DispatchedRows
from examples.agent_training.policy_update import (
    LARGEST_GRADIENT,
    Row,
    add_gradient,
    digest_of,
    new_model,
    read_weights,
    reference_of,
    save_weights,
)
from examples.agent_training.row_blocks import ARRAYS, RowBlock, RowFacts
from examples.agent_training.row_exchange import GatherScatter, RowExchange, empty_block

#: Longest wait for another rank in a collective call.
_COLLECTIVE_SECONDS = 300.0
_LOADED = ("tokens", "mask", "logprobs")


def experience_ranks(ranks: int) -> list[int]:
    """Return the ranks that compute log-probabilities of the reference model."""
    return list(range(max(1, ranks // 2)))


def update_ranks(ranks: int) -> list[int]:
    """Return the ranks that update the weights."""
    return list(range(ranks // 2, ranks))


class Rank:
    """The models of one rank, and what it does with an order."""

    def __init__(self, rank: int, ranks: int, run: Path, exchange: RowExchange) -> None:
        self.rank, self.ranks, self.run = rank, ranks, run
        self.exchange = exchange
        self.updates = rank in update_ranks(ranks)
        #: Ranks that sum their gradients.
        self.updaters = distributed.new_group(update_ranks(ranks))
        self._step = -1
        self._policy = new_model() if self.updates else None
        self._optimizer: Any = None
        self._reference: Any = None
        self._seconds: dict[str, float] = {}
        self._began = 0.0

    def step(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Take one step: load, experience, exchange, update."""
        self._seconds = {}
        rows = [RowFacts(*each) for each in order["rows"]]
        lengths = [row.length for row in rows]
        self._phase("load")
        self._read_weights(int(order["base"]))
        block = self._loaded(order, lengths)
        self._phase("experience")
        block = self._with_reference(block, lengths)
        self._phase("exchange")
        block = self.exchange.move(block, order["experience"], order["update"], lengths)
        gains = self.exchange.advantages(rows, order["experience"], block.numbers)
        self._phase("update")
        found = self._update(order, rows, block, gains) if self.updates else {}
        self._phase("")
        return {**found, "seconds": self._seconds, "tokens": sum(lengths[n] for n in block.numbers)}

    def _loaded(self, order: Mapping[str, Any], lengths: Sequence[int]) -> RowBlock:
        """Return the rows of this rank before the exchange."""
        if (manifest := order.get("manifest")) is not None:
            return self._pulled(manifest)
        whole = [0] * len(lengths)
        block = RowBlock.load(Path(order["file"])) if self.rank == 0 else empty_block(_LOADED)
        return GatherScatter(self.rank, self.ranks).move(block, whole, order["experience"], lengths)

    def _pulled(self, manifest: Mapping[str, Any]) -> RowBlock:
        """Return the rows of this rank, read from the rollout workers."""
        if self.rank >= int(manifest["ranks"]):
            return empty_block(_LOADED)
        found = pull(dict(manifest), self.rank, gateway=str(manifest.get("gateway") or ""))
        logprobs = np.nan_to_num(found["logprobs"]).astype("float32", copy=False)
        arrays = {"tokens": found["tokens"], "mask": found["loss_mask"], "logprobs": logprobs}
        return RowBlock(tuple(found["rows"].tolist()), arrays)

    def _with_reference(self, block: RowBlock, lengths: Sequence[int]) -> RowBlock:
        if not block.numbers:
            return empty_block(list(ARRAYS))
        if self._reference is None:
            self._reference = new_model()
            read_weights(self._reference, self.run / "steps" / "000000" / WEIGHTS)
        values = reference_of(self._reference, _rows(block, lengths))
        flat = torch.tensor([each for row in values for each in row], dtype=torch.float32)
        return RowBlock(block.numbers, {**block.arrays, "reference": flat.numpy()})

    def _update(
        self,
        order: Mapping[str, Any],
        facts: Sequence[RowFacts],
        block: RowBlock,
        gains: Sequence[float],
    ) -> dict[str, Any]:
        assert self._policy is not None
        lengths = [row.length for row in facts]
        rows = [
            row._replace(advantage=gain)
            for gain, row in zip(gains, _rows(block, lengths), strict=True)
        ]
        sampled = max(1, sum(row.sampled for row in facts))
        before = digest_of(self._policy)
        self._optimizer.zero_grad(set_to_none=False)
        sums = add_gradient(self._policy, rows, sampled, float(order["reference_weight"]))
        norm = self._summed()
        for group in self._optimizer.param_groups:
            group["lr"] = float(order["rate"])
        self._optimizer.step()
        self._step = int(order["step"])
        if self.rank == update_ranks(self.ranks)[0]:
            draft = Path(order["draft"])
            save_weights(self._policy, draft / WEIGHTS, self._step)
            torch.save(self._optimizer.state_dict(), draft / OPTIMIZER)
        shares = {name: value / sampled for name, value in sums.items()}
        return {"before": before, "after": digest_of(self._policy), "norm": norm, **shares}

    def _summed(self) -> float:
        """Sum the gradients of all ranks that update, and clip them; return their norm."""
        assert self._policy is not None
        weights = list(self._policy.parameters())
        for each in weights:
            each.grad = torch.zeros_like(each) if each.grad is None else each.grad
        flat = torch.cat([each.grad.view(-1) for each in weights])
        distributed.all_reduce(flat, group=self.updaters)
        at = 0
        for each in weights:
            each.grad.copy_(flat[at : at + each.numel()].view_as(each))
            at += each.numel()
        return float(torch.nn.utils.clip_grad_norm_(weights, LARGEST_GRADIENT))

    def _read_weights(self, step: int) -> None:
        if self._policy is None or self._step == step:
            return
        folder = self.run / "steps" / f"{step:06d}"
        read_weights(self._policy, folder / WEIGHTS)
        self._optimizer = torch.optim.Adam(self._policy.parameters())
        if (folder / OPTIMIZER).exists():
            self._optimizer.load_state_dict(torch.load(folder / OPTIMIZER))
        self._step = step

    def _phase(self, name: str) -> None:
        """Begin a phase, and end the one before."""
        now = time.monotonic()
        if self._seconds or self._began:
            last = next(reversed(self._seconds), "")
            if last:
                self._seconds[last] = round(now - self._began, 4)
        self._began = now
        if name:
            self._seconds[name] = 0.0
            say({"phase": name})


def say(message: Mapping[str, Any]) -> None:
    """Write one line of JSON to the trainer."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _rows(block: RowBlock, lengths: Sequence[int]) -> list[Row]:
    found, at = [], 0
    lists = {name: values.tolist() for name, values in block.arrays.items()}
    for number in block.numbers:
        end = at + lengths[number]
        found.append(
            Row(
                lists["tokens"][at:end],
                lists["mask"][at:end],
                lists["logprobs"][at:end],
                0.0,
                lists["reference"][at:end] if "reference" in lists else (),
            )
        )
        at = end
    return found


def _orders() -> queue.Queue[dict[str, Any]]:
    """Return the orders as they arrive; end the process at the end of the input."""
    found: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            found.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True, name="orders").start()
    return found


def main() -> None:
    """Serve the trainer until it ends."""
    parser = argparse.ArgumentParser(description="One rank of the small agent's trainer")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--meeting", required=True, help="file by which the ranks meet")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--dispatcher", action="store_true", help="exchange rows by the dispatcher")
    options = parser.parse_args()
    orders = _orders()
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{options.meeting}",
        rank=options.rank,
        world_size=options.ranks,
        timeout=timedelta(seconds=_COLLECTIVE_SECONDS),
    )
    exchange: RowExchange = GatherScatter(options.rank, options.ranks)
    if options.dispatcher and options.ranks > 1:
        exchange = DispatchedRows(options.rank, options.ranks)
    rank = Rank(options.rank, options.ranks, options.run, exchange)
    say({"done": {"pid": os.getpid()}})
    while True:
        say({"done": rank.step(orders.get())})


if __name__ == "__main__":
    main()
