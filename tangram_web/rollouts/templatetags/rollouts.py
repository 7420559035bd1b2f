"""Template filters of rollouts: state and stage as a chip, numbers of tokens and log-probabilities."""

from __future__ import annotations

from typing import NamedTuple

from django import template

from contract.rollout_status import BackendStatus
from domain.rollouts import RolloutState
from tangram_web.records.models import RolloutRecord
from tangram_web.rollouts.backend_pools import is_usable
from tangram_web.rollouts.rollout_lists import Lane

register = template.Library()


class PhaseChip(NamedTuple):
    """What a rollout does, as a chip of a page."""

    #: Shape and colour.
    chip: str
    words: str


@register.filter
def phase(record: RolloutRecord) -> PhaseChip:
    """Return what a rollout does now, or that it is finished."""
    match RolloutState(record.state):
        case RolloutState.WAITING:
            return PhaseChip("queued", "waits for a worker")
        case RolloutState.PARKED:
            return PhaseChip("paused", "parked")
        case RolloutState.FINISHED:
            return PhaseChip("finished", "finished")
    if record.stage is None:
        return PhaseChip("granted", "assigned")
    stage = record.stage.upper()
    return PhaseChip("queued", f"{stage} queued") if record.queued else PhaseChip("running", stage)


@register.filter
def short_id(rollout_id: str) -> str:
    """Return the end of an id."""
    return f"…{rollout_id[-8:]}"


@register.filter
def count(number: int | None) -> str:
    """Return a number with separators: ``12,345``."""
    return "–" if number is None else f"{number:,}"


@register.filter
def reward(value: float | None) -> str:
    """Return a reward: ``0.5``."""
    return "–" if value is None else f"{value:.4g}"


@register.filter
def logprob(value: float | None) -> str:
    """Return a log-probability: ``-0.31``."""
    return "–" if value is None else f"{value:.2f}"


@register.filter
def lane_title(name: str) -> str:
    """Return the title of a lane."""
    return Lane(name).title


@register.filter
def free_seats(backend: BackendStatus) -> int:
    """Return the seats that new rollouts can take."""
    return max(0, backend.seats - backend.taken) if is_usable(backend) else 0
