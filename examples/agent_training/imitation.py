"""Checkpoint 0: a small model that imitates conversations of a teacher.

    /usr/bin/python3 -m examples.agent_training.imitation --samples FILE --out FILE --seed 0 --epochs 16

``--samples``: a file of JSON with ``samples``, a list of ``{"ids", "mask"}``. The last line of the output is ``{"digest", "loss"}``. Without epochs the
weights are those of the seed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

import torch

from examples.agent_training.policy_update import (
    LARGEST_GRADIENT,
    Row,
    add_imitation,
    digest_of,
    new_model,
    save_weights,
)

_AT_ONCE = 16
_RATE = 4e-3


def main() -> None:
    """Imitate, and store the weights."""
    parser = argparse.ArgumentParser(description="Imitation of a teacher's conversations")
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = new_model(options.seed)
    optimizer = torch.optim.Adam(model.parameters())
    stored = json.loads(options.samples.read_text())["samples"] if options.samples else []
    rows = [Row(each["ids"], each["mask"], ()) for each in stored]
    chance = random.Random(options.seed)
    loss: float | None = None
    for epoch in range(options.epochs if rows else 0):
        chance.shuffle(rows)
        losses = []
        for first in range(0, len(rows), _AT_ONCE):
            optimizer.param_groups[0]["lr"] = _RATE * (1 - epoch / (options.epochs + 1))
            optimizer.zero_grad()
            losses.append(add_imitation(model, rows[first : first + _AT_ONCE]))
            torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT)
            optimizer.step()
        loss = round(sum(losses) / len(losses), 4)
        _say(f"imitation {epoch + 1}/{options.epochs}: loss {loss:.4f}")
    save_weights(model, options.out, 0)
    _say(json.dumps({"digest": digest_of(model), "loss": loss}))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
