"""Residency registry: the policy that a machine uses, and the handlers of its events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from domain import events
from domain.decisions import Decision
from scheduler.core.residency import services
from scheduler.core.residency.policy import ResidencyPolicy
from scheduler.core.state.model import State

#: Makes the residency policy of a state.
make_residency: Final[Callable[[State], ResidencyPolicy]] = services.ServiceResidency

HANDLERS: Final[dict[type, Callable[[State, Any, list[Decision]], None]]] = {
    events.ServiceEvictionAsked: services.eviction_asked,
    events.ServicePrepared: services.prepared,
}
