"""A task's training: rewards, tokens and waste of its rollouts by the version of the weights that sampled them.

A trainer gives each set of weights a version, and tokens carry it, so the curve needs nothing from the trainer but that.

Rules
1. A rollout belongs to the version of its first token. One that was parked may have later tokens too.
2. Means are over finished rollouts with a reward. *Waste* is the share of groups whose rewards are all equal, of those with two or more.
3. The latest `LOOKED` rollouts are looked at, and the latest `VERSIONS` versions shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tangram_web.records.models import RolloutRecord, TaskRecord

LOOKED: Final = 20_000
VERSIONS: Final = 60
#: Height of the drawing.
HEIGHT: Final = 80
_FIELDS: Final = (
    "first_version", "group", "reward", "prompt_tokens", "response_tokens", "turns", "total_seconds",
)  # fmt: skip


@dataclass
class WeightsVersion:
    """The finished rollouts that one version of the weights sampled."""

    version: int
    rollouts: int = 0
    #: Without a reward: they train nothing.
    failed: int = 0
    rewards: list[float] = field(default_factory=list)
    tokens: int = 0
    turns: int = 0
    seconds: float = 0.0
    groups: dict[str, list[float]] = field(default_factory=dict)

    @property
    def reward(self) -> float | None:
        """Mean reward."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else None

    @property
    def mean_tokens(self) -> float:
        """Mean tokens of a rollout: prompts and responses of all its turns."""
        return self.tokens / self.rollouts

    @property
    def mean_turns(self) -> float:
        """Mean answers of the model in a rollout."""
        return self.turns / self.rollouts

    @property
    def mean_seconds(self) -> float:
        """Mean time of a rollout from its submission to its end."""
        return self.seconds / self.rollouts

    @property
    def wasted(self) -> float | None:
        """Share of groups that train nothing, since their rewards are equal; None without a group."""
        decided = [each for each in self.groups.values() if len(each) > 1]
        return sum(len(set(each)) == 1 for each in decided) / len(decided) if decided else None


@dataclass(frozen=True)
class RewardColumn:
    """One version in the drawing; places are percentages and pixels."""

    start: float
    width: float
    top: float
    height: float
    title: str


def weights_versions(task: TaskRecord) -> list[WeightsVersion]:
    """Return the versions of a task's weights, latest first; empty where its rollouts sample nothing."""
    rows = RolloutRecord.objects.filter(
        project=task.project, task=task.name, first_version__isnull=False, outcome__isnull=False
    )
    found: dict[int, WeightsVersion] = {}
    for version, group, reward, prompt, response, turns, seconds in rows.order_by("-id").values_list(*_FIELDS)[:LOOKED]:  # fmt: skip
        each = found.setdefault(version, WeightsVersion(version))
        each.rollouts += 1
        each.tokens += prompt + response
        each.turns += turns
        each.seconds += seconds or 0.0
        if reward is None:
            each.failed += 1
            continue
        each.rewards.append(reward)
        if group is not None:
            each.groups.setdefault(group, []).append(reward)
    return [found[version] for version in sorted(found, reverse=True)[:VERSIONS]]


def reward_columns(versions: Iterable[WeightsVersion]) -> list[RewardColumn]:
    """Return a column for each version with a reward, the earliest first."""
    shown = [each for each in versions if each.reward is not None][::-1]
    rewards = [each.reward for each in shown if each.reward is not None]
    low, high = min([0.0, *rewards]), max([1.0, *rewards])
    width = 100 / max(1, len(shown))
    return [
        _column(each.version, reward, number * width, width, (reward - low) / (high - low))
        for number, (each, reward) in enumerate(zip(shown, rewards, strict=True))
    ]


def _column(version: int, reward: float, start: float, width: float, share: float) -> RewardColumn:
    height = 2 + (HEIGHT - 2) * share
    title = f"version {version}: reward {reward:.3f}"
    return RewardColumn(
        round(start + width * 0.1, 3), round(width * 0.8, 3), round(HEIGHT - height, 2), round(height, 2), title
    )  # fmt: skip
