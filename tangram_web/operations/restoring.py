"""Restoring a service: the call that warms it up, made as an action like any other.

It waits for its turn and its chunk as every call does, so that nothing else is pushed aside.
"""

from __future__ import annotations

import secrets
from time import time

from domain.action import Action, Kind
from domain.apis import CallSpec
from domain.events import ActionSubmitted
from domain.ids import action_id
from domain.services import PREFIX, GpuService

TASK = "operations"
PROJECT = "default"


def warming(name: str, service: GpuService) -> ActionSubmitted:
    """Return the submission of one warm-up call of a service."""
    warm_up = service.warm_up
    call = CallSpec(PREFIX + name, warm_up.method, warm_up.path, body=warm_up.body)
    now = time()
    action = Action(
        id=action_id(int(now * 1000), secrets.token_bytes(8)),
        project=PROJECT,
        task=TASK,
        kind=Kind.CALL,
        cost={"gpu": service.units},
        key="gpu",
        call=call,
        family="restore",
    )
    return ActionSubmitted(action=action, accepted_at=now)
