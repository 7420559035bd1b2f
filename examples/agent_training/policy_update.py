"""Loss and gradient of one rank's rows: DAPO's clipped policy gradient, with the distance from the reference model.

The loss of a batch is a sum over its tokens divided by their number, so each rank computes the sum over its own rows, and the
sum of the ranks' gradients is the gradient of the batch, however the rows are divided.

Needs PyTorch (1.13 or later) and numpy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from examples.agent_training.shared_prompt import hidden_behind, shared_length
from examples.rollouts.small_model.transformer import Shape, Transformer

_LOW, _HIGH = 0.2, 0.28
LARGEST_GRADIENT = 1.0
#: Tokens, padding included, that are computed at once.
_TOKENS_AT_ONCE = 16_384


class Row(NamedTuple):
    """One segment: tokens, and for each of them what the update needs. Lists have one length."""

    tokens: Sequence[int]
    #: 1: sampled by the model.
    mask: Sequence[int]
    #: Of the policy that sampled, where the mask is 1.
    logprobs: Sequence[float]
    advantage: float = 0.0
    #: Of the reference model, where the mask is 1; empty: not computed yet.
    reference: Sequence[float] = ()


def likelihoods(model: Transformer, rows: Sequence[Row]) -> Any:
    """Return log-probabilities of the learned tokens of some rows, one row behind the other. The first token is never learned."""
    lists = [each.tokens for each in rows]
    # The state of the token before predicts a token.
    before = [each.mask.index(1) - 1 if 1 in each.mask else len(each.mask) - 1 for each in rows]
    shared = shared_length(lists, min(before))
    hidden = hidden_behind(model, lists, shared)[:, :-1]
    targets = torch.zeros(hidden.shape[:2], dtype=torch.long)
    learned = torch.zeros(hidden.shape[:2], dtype=torch.bool)
    for number, row in enumerate(rows):
        end = len(row.tokens) - shared - 1
        targets[number, :end] = torch.tensor(list(row.tokens[shared + 1 :]))
        learned[number, :end] = torch.tensor(list(row.mask[shared + 1 :])).bool()
    found = torch.log_softmax(model.logits(hidden[learned]), -1)
    return found.gather(1, targets[learned][:, None])[:, 0]


@torch.no_grad()  # type: ignore[untyped-decorator]
def reference_of(model: Transformer, rows: Sequence[Row]) -> list[list[float]]:
    """Return for each row the log-probabilities of its tokens; 0 where the mask is 0."""
    found: list[list[float]] = [[] for _ in rows]
    for part in parts(rows):
        values = iter(likelihoods(model, [rows[number] for number in part]).tolist())
        for number in part:
            found[number] = [next(values) if learned else 0.0 for learned in rows[number].mask]
    return found


def add_gradient(
    model: Transformer, rows: Sequence[Row], tokens: int, reference_weight: float
) -> dict[str, float]:
    """Add the gradient of some rows of a batch that has so many learned tokens; return sums over the rows' tokens."""
    sums = {"loss": 0.0, "clipped": 0.0, "distance": 0.0}
    for part in parts(rows):
        chosen = [rows[number] for number in part]
        likely = likelihoods(model, chosen)
        before = _learned([each.logprobs for each in chosen], chosen)
        reference = _learned([each.reference or each.logprobs for each in chosen], chosen)
        gain = _learned([[each.advantage] * len(each.mask) for each in chosen], chosen)
        ratio = (likely - before).exp()
        bounded = ratio.clamp(1 - _LOW, 1 + _HIGH)
        behind = reference - likely
        distance = behind.exp() - behind - 1
        loss = -torch.minimum(ratio * gain, bounded * gain) + reference_weight * distance
        (loss.sum() / tokens).backward()
        sums["loss"] += float(loss.sum())
        sums["distance"] += float(distance.sum())
        sums["clipped"] += float((ratio * gain > bounded * gain).float().sum())
    return sums


def add_imitation(model: Transformer, rows: Sequence[Row]) -> float:
    """Add the gradient of imitating some rows; return the mean loss of their learned tokens."""
    tokens, total = sum(sum(each.mask) for each in rows), 0.0
    for part in parts(rows):
        loss = -likelihoods(model, [rows[number] for number in part]).sum()
        (loss / tokens).backward()
        total += float(loss)
    return total / tokens


def parts(rows: Sequence[Row]) -> Iterator[list[int]]:
    """Yield places of rows of similar lengths that fit in memory together."""
    part: list[int] = []
    for place in sorted(range(len(rows)), key=lambda each: len(rows[each].tokens)):
        if part and (len(part) + 1) * len(rows[place].tokens) > _TOKENS_AT_ONCE:
            yield part
            part = []
        part.append(place)
    if part:
        yield part


def digest_of(model: Transformer) -> str:
    """Return a digest of all weights."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def save_weights(model: Transformer, path: Path, version: int) -> None:
    """Store all weights as engines read them."""
    torch.save({"weights_version": version, "state": model.state_dict()}, path)


def read_weights(model: Transformer, path: Path) -> None:
    """Take the weights of a file. Raises OSError."""
    model.load_state_dict(torch.load(path)["state"])


def new_model(seed: int = 0) -> Transformer:
    """Return the model of the example with weights of a seed."""
    return Transformer(Shape(), seed)


def _learned(values: Sequence[Sequence[float]], rows: Sequence[Row]) -> Any:
    """Return the values of the learned tokens, from one list for each row."""
    pairs = (pair for each, row in zip(values, rows, strict=True) for pair in zip(each, row.mask, strict=True))  # fmt: skip
    return torch.tensor([value for value, learned in pairs if learned], dtype=torch.float32)
