"""Times of workers that compute prompts between the tokens that they sample.

While a worker computes the uncached part of a prompt, its batch samples less or nothing. So each of B sequences waits for the prompts of
all B: one of its tokens takes longer by B · (seconds of a mean prompt) / (mean tokens of a generation). Of agents whose tools print much this
is more than what their caches add: with 0.8 computed tokens for each sampled one, 100 sequences of a model of 14 billion parameters take 7 ms
longer for a token of 12 ms. The paper's interference factor (heddle, §5.1) is measured with running trajectories, and so contains it; a profile
of tokens alone does not.

Both means are measured, of the generations that ended last. Before any has ended nothing is added.
"""

from __future__ import annotations

from typing import Final

import msgspec

from placement.policies.protocol import WorkerTimes

#: Generations that the means are of, about.
_WINDOW: Final = 1024


class PromptLoad(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Means of the generations that ended last."""

    generations: int = 0
    #: Tokens of a prompt that no cache had.
    computed_tokens: float = 0.0
    sampled_tokens: float = 0.0

    def with_ended(self, computed_tokens: int, sampled_tokens: int) -> PromptLoad:
        """Return the means with one more generation."""
        count = min(self.generations + 1, _WINDOW)
        computed = max(0, computed_tokens) - self.computed_tokens
        sampled = max(0, sampled_tokens) - self.sampled_tokens
        return PromptLoad(
            count, self.computed_tokens + computed / count, self.sampled_tokens + sampled / count
        )


class BusyTimes:
    """`WorkerTimes` of workers with a prompt load: their token time has a share of the prompts of the batch."""

    def __init__(self, times: WorkerTimes, load: PromptLoad) -> None:
        self._times = times
        self._load = load
        #: By degree: seconds that each sequence of a batch adds to each token.
        self._stalls: dict[int, float] = {}

    def token_seconds(self, degree: int, batch: int, context_tokens: float) -> float:
        """Return seconds per token of each of ``batch`` sequences, the prompts of all of them counted."""
        alone = self._times.token_seconds(degree, batch, context_tokens)
        return alone + batch * self._stall(degree)

    def _stall(self, degree: int) -> float:
        found = self._stalls.get(degree)
        if found is None:
            sampled, found = self._load.sampled_tokens, 0.0
            if sampled > 0:
                tokens = round(self._load.computed_tokens)
                found = self._times.prefill_seconds(degree, tokens) / sampled
            self._stalls[degree] = found
        return found

    def prefill_seconds(self, degree: int, tokens: int) -> float:
        """Return the seconds that a prompt of so many uncached tokens takes."""
        return self._times.prefill_seconds(degree, tokens)

    def transfer_seconds(self, tokens: int) -> float:
        """Return the seconds that a cache of so many tokens takes between two workers."""
        return self._times.transfer_seconds(tokens)

    def kv_tokens(self, degree: int) -> float:
        """Return the tokens of cache that fit on a worker."""
        return self._times.kv_tokens(degree)
