"""Batches from Tangram's rollouts: groups that DAPO chose, with rows that the ranks pull themselves, or that the trainer reads.

Lifetimes: one source for a process of the trainer. The next process continues from the state in the newest checkpoint: it finds what was
submitted since by the names of the groups, and returns a batch that was not committed once more.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from examples.agent_training import note_task
from examples.agent_training.row_blocks import RowFacts, block_of
from examples.agent_training.training_loop import RolloutBatch
from examples.agent_training.training_options import TrainingOptions
from examples.rollouts.demo import TOKENIZER_NAME
from tangram_client import Client
from tangram_client._rollout_calls import RolloutInfo
from tangram_client.dapo import Dapo, PromptGroup, differ

#: Prompts that a run has: more than any run tries.
_LISTED: Final = 4000
#: Prompts of one step that are tried for each that trains.
_TRIED: Final = 6
_ACKNOWLEDGED: Final = 500


def rollout_fields(options: TrainingOptions, llm: str) -> dict[str, Any]:
    """Return the members that all submissions of a run share."""
    return {
        "llm": llm,
        "options": note_task.options(options.uses("elastic")),
        "sampling": {
            "temperature": 1.0, "max_tokens": note_task.MAX_TOKENS, "max_model_len": note_task.CONTEXT,
            "custom_tokenizer": TOKENIZER_NAME,
        },
    }  # fmt: skip


def first_state(client: Client, name: str) -> dict[str, Any]:
    """Return the state of a run that begins now; it has the run's name, so that a trainer that ends at once finds its rollouts."""
    return {"run": f"{name}-{uuid4().hex[:8]}", "cursor": client.rollouts.completions("now").next}


class ServiceRollouts:
    """Rollouts as a service: Tangram runs the agents, and the trainer reads tokens and rewards."""

    def __init__(
        self,
        client: Client,
        options: TrainingOptions,
        sets: Sequence[note_task.NoteSet],
        llm: str,
        state: Mapping[str, Any] | None,
        *,
        readers: int = 0,
    ) -> None:
        """``readers``: ranks that pull their rows from the rollout workers themselves; 0: the trainer reads all rows."""
        self._client, self._readers = client, readers
        self._rewards: list[Sequence[float]] = []
        self._before = (0, 0)
        self.dapo = Dapo(
            client, options.name, note_task.HANDLER,
            note_task.instances(sets, _LISTED, options.growth, options.seed),
            prompts=options.prompts, samples=options.samples, at_once=options.at_once,
            most_prompts=_TRIED * options.prompts, errors="fewer", state=state, informative=self._judged, tokens=not readers,
            metadata={"example": "train_agent"}, **rollout_fields(options, llm),
        )  # fmt: skip

    def batch(self) -> RolloutBatch | None:
        """Return the next batch; None after the last prompt."""
        while not (found := self.dapo.batch()):
            if self.dapo.counts.prompts >= _LISTED:
                return None
        infos = [info for group in found for info in group.rewarded]
        if self._readers:
            return self._pulled(found, infos)
        segments = [(info, each) for info in infos for each in info.segments or ()]
        rows = [row_of(segment) for _, segment in segments]
        facts = [facts_of(info, row) for (info, _), row in zip(segments, rows, strict=True)]
        names = [group.name for group in found]
        every = [name for group in found for name in group.rollouts]
        block = block_of(range(len(rows)), rows)
        return RolloutBatch(facts, names, every, block, figures=self._figures(infos, facts))

    def _pulled(self, found: Sequence[PromptGroup], infos: Sequence[RolloutInfo]) -> RolloutBatch:
        """Return a batch whose rows the ranks pull; the manifest alone passes the trainer."""
        rollouts = [info.id for info in infos]
        manifest = self._client.batches.create(rollouts=rollouts, layout={"ranks": self._readers})
        groups = {info.id: group.name for group in found for info in group.rewarded}
        facts = [
            RowFacts(
                each["rollout"], groups[each["rollout"]], each["reward"],
                each["prompt_tokens"] + each["response_tokens"], each["sampled_tokens"],
            )
            for each in manifest["rows"]
        ]  # fmt: skip
        every = [name for group in found for name in group.rollouts]
        names = [group.name for group in found]
        return RolloutBatch(facts, names, every, None, manifest, self._figures(infos, facts))

    def state(self) -> Mapping[str, Any]:
        """Return what another process needs to continue after the last batch."""
        return self.dapo.state()

    def acknowledge(self, rollouts: Sequence[str]) -> None:
        """Have the tokens of trained rollouts deleted."""
        for part in parted(rollouts, _ACKNOWLEDGED):
            self._client.rollouts.acknowledge(part)

    def close(self) -> None:
        """Cancel what is not finished."""
        self.dapo.close()

    def _judged(self, rewards: Sequence[float]) -> bool:
        """Say whether a group trains, and count its rewards for the step's line."""
        self._rewards.append(list(rewards))
        return differ(rewards)

    def _figures(self, infos: Sequence[RolloutInfo], facts: Sequence[RowFacts]) -> dict[str, Any]:
        counts = self.dapo.counts
        informative, wasted = counts.informative - self._before[0], counts.wasted - self._before[1]
        self._before = counts.informative, counts.wasted
        rewards = [each for group in self._rewards for each in group]
        self._rewards = []
        lengths = sorted(row.length for row in facts)
        return {
            # Of all groups that were judged, also those that train nothing.
            "reward": round(statistics.fmean(rewards), 4) if rewards else None,
            "wasted": round(wasted / max(1, wasted + informative), 3),
            "turns": round(statistics.fmean(info.turns for info in infos), 3),
            "context": round(statistics.fmean(lengths)),
            "longest": lengths[-1],
            "sampled": sum(row.sampled for row in facts),
            "carried": counts.carried,
            "dropped": counts.dropped,
        }


def row_of(segment: Mapping[str, Any]) -> dict[str, Sequence[float]]:
    """Return the arrays of a segment of a rollout."""
    prompt, response = segment["prompt_ids"], segment["response_ids"]
    blank = [0] * len(prompt)
    return {
        "tokens": [*prompt, *response],
        "mask": [*blank, *segment["loss_mask"]],
        "logprobs": [*blank, *(value or 0.0 for value in segment["logprobs"])],
    }


def facts_of(info: RolloutInfo, row: Mapping[str, Sequence[float]]) -> RowFacts:
    """Return what all ranks know of a row."""
    sampled = int(sum(row["mask"]))
    return RowFacts(info.id, info.group or info.id, info.reward or 0.0, len(row["tokens"]), sampled)


def parted(names: Sequence[str], size: int) -> Iterator[list[str]]:
    """Yield parts of a list."""
    for first in range(0, len(names), size):
        yield list(names[first : first + size])


def run_all(
    client: Client,
    options: TrainingOptions,
    instances: Sequence[Mapping[str, Any]],
    llm: str,
    task: str,
) -> list[RolloutInfo]:
    """Return one finished rollout of each instance, with its tokens."""
    made: list[str] = []
    for first in range(0, len(instances), 200):
        part = instances[first : first + 200]
        made += client.rollouts.submit(task, note_task.HANDLER, part, **rollout_fields(options, llm))  # fmt: skip
    found = [client.rollouts.wait(rollout) for rollout in made]
    for names in parted(made, _ACKNOWLEDGED):
        client.rollouts.acknowledge(names)
    return found
