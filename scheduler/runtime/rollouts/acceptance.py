"""Acceptance of rollouts: what a request becomes, as facts for the core and as the first records of logs.

Facts enter the journal (`domain.rollouts.Rollout`); the instance, sampling parameters and options stay in the log.
"""

from __future__ import annotations

import os
from time import time_ns
from typing import Any, NamedTuple

import msgspec

from contract.rollout_requests import MAX_ROLLOUTS, InstanceRequest, RolloutsRequest
from contract.rollout_views import AcceptedRollout
from domain.errors import InvalidRequest
from domain.rollouts import STAGES, Rollout, RolloutId, Stage, StageLimits, new_rollout_id
from rollout.ports import Record


class AcceptedRequest(NamedTuple):
    """One rollout of a request, and record 0 of its log."""

    rollout: Rollout
    first: Record

    @property
    def receipt(self) -> AcceptedRollout:
        """The answer to the client."""
        rollout = self.rollout
        return AcceptedRollout(rollout.id, rollout.instance, rollout.sample, rollout.group)


def _new_id() -> RolloutId:
    return new_rollout_id(time_ns() // 1_000_000, os.urandom(8))


def accepted(
    payload: RolloutsRequest, project: str, stages: tuple[Stage, ...], door: str = ""
) -> list[AcceptedRequest]:
    """Return the rollouts of a request. Raises InvalidRequest."""
    number = len(payload.instances) * payload.samples
    if number > MAX_ROLLOUTS:
        raise InvalidRequest(
            f"{len(payload.instances)} instances with {payload.samples} samples are {number} rollouts,"
            f" at most {MAX_ROLLOUTS} are accepted together: divide the request",
            pointer="/samples",
        )
    if payload.group is not None and len(payload.instances) > 1:
        raise InvalidRequest(
            "a group has the samples of one instance: give one instance, or no group",
            pointer="/group",
        )
    found: list[AcceptedRequest] = []
    for instance in payload.instances:
        group = payload.group
        if group is None and payload.samples > 1:
            group = f"grp_{os.urandom(12).hex()}"
        first = Record("request", _request(payload, instance))
        for sample in range(payload.samples):
            rollout = _rollout(payload, instance, project, stages, door, group, sample, number)
            found.append(AcceptedRequest(rollout, first))
    return found


def declared_stages(resources: dict[str, int]) -> tuple[Stage, ...]:
    """Return the stages whose resource is declared: those take leases."""
    return tuple(stage for stage in STAGES if f"stage:{stage.value}" in resources)


def _rollout(
    payload: RolloutsRequest,
    instance: InstanceRequest,
    project: str,
    stages: tuple[Stage, ...],
    door: str,
    group: str | None,
    sample: int,
    number: int,
) -> Rollout:
    """Return one of the ``number`` rollouts of a request."""
    return Rollout(
        id=_new_id(),
        project=project,
        task=payload.task,
        handler=payload.handler,
        instance=instance.id,
        group=group,
        sample=sample,
        llm=payload.llm or "",
        batch=payload.batch or "",
        batch_size=payload.batch_size or (number if payload.batch else 0),
        priority=payload.priority,
        limits=StageLimits(**msgspec.structs.asdict(payload.limits)),
        max_version_span=payload.max_version_span,
        stages=stages,
        metadata=payload.metadata,
        door=door,
    )


def _request(payload: RolloutsRequest, instance: InstanceRequest) -> dict[str, Any]:
    environment = instance.environment or payload.environment
    return {
        "instance": {"id": instance.id, **instance.data},
        "sampling": payload.sampling,
        "environment": None if environment is None else msgspec.to_builtins(environment),
        "options": payload.options,
    }
