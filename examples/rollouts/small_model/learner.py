"""Two ways to change the small model: imitation of examples, and the policy gradient of DAPO.

DAPO's loss (Yu et al., 2025, formula 8): the mean over all tokens of a batch of ``-min(r A, clip(r, 1-low, 1+high) A)``, where r
is the ratio of a token's probability to that with which it was sampled and A its response's advantage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from examples.rollouts.small_model.transformer import Transformer, padded

_LOW, _HIGH = 0.2, 0.28
_LARGEST_GRADIENT = 1.0
#: Tokens, padding included, that are computed at once.
_TOKENS_AT_ONCE = 16_384


class Sample(NamedTuple):
    """Tokens of one conversation, of which those with a mask of 1 are learned."""

    ids: Sequence[int]
    #: For each id.
    mask: Sequence[int]
    #: For each id, where the mask is 1; empty: the sample is imitated.
    logprobs: Sequence[float] = ()
    advantage: float = 1.0


class Learner:
    """Optimisers of one model: imitation leaves no momentum to the policy gradient."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self._imitation, self._policy = (torch.optim.Adam(model.parameters()) for _ in range(2))

    def step(self, samples: Sequence[Sample], rate: float) -> dict[str, float]:
        """Take one step; return the loss, and the share of tokens whose ratio was clipped."""
        optimiser = self._policy if samples[0].logprobs else self._imitation
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad()
        tokens = max(1, sum(sum(each.mask) for each in samples))
        total = clipped = 0.0
        for part in _parts(samples):
            loss, cut = self._loss(part)
            (loss / tokens).backward()
            total, clipped = total + float(loss), clipped + cut
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), _LARGEST_GRADIENT)
        optimiser.step()
        return {"loss": total / tokens, "clipped": clipped / tokens, "tokens": float(tokens)}

    def _loss(self, samples: Sequence[Sample]) -> tuple[Any, float]:
        ids, first = padded([each.ids for each in samples])
        mask, _ = padded([each.mask for each in samples])
        hidden = self.model(ids[:, :-1], first)
        learned = mask[:, 1:].bool()
        targets = ids[:, 1:][learned]
        likely = torch.log_softmax(self.model.logits(hidden[learned]), -1)
        likely = likely.gather(1, targets[:, None])[:, 0]
        if not samples[0].logprobs:
            return -likely.sum(), 0.0
        width = ids.shape[1]
        before = torch.tensor(
            [[0.0] * (width - len(each.ids)) + list(each.logprobs) for each in samples]
        )[:, 1:][learned]
        gain = torch.tensor([each.advantage for each in samples])[:, None]
        gain = gain.expand(learned.shape)[learned]
        ratio = (likely - before).exp()
        bounded = ratio.clamp(1 - _LOW, 1 + _HIGH)
        cut = float((ratio * gain > bounded * gain).float().sum())
        return -torch.minimum(ratio * gain, bounded * gain).sum(), cut


def _parts(samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
    """Yield the samples in parts of similar lengths that fit in memory."""
    part: list[Sample] = []
    for sample in sorted(samples, key=lambda each: len(each.ids)):
        if part and (len(part) + 1) * len(sample.ids) > _TOKENS_AT_ONCE:
            yield part
            part = []
        part.append(sample)
    if part:
        yield part
