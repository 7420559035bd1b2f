"""Queries of the configuration, and the authentication of tokens."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec
from django.db.models import Max, Q, QuerySet
from django.utils import timezone
from knox.crypto import hash_token

from domain.confinement import SandboxRule
from domain.egress import EgressRules
from domain.fleets import FleetSpec
from domain.inventory import (
    NODE_DEAD_SECONDS,
    NODE_GRACE_SECONDS,
    Config,
    PoolConfig,
    ProjectConfig,
)
from domain.limits import Limits, Share
from domain.manifest import PoolShares, ResourceSpec, WarmImages, parts_of
from domain.node_groups import NodeGroupSpec
from domain.principals import Principal, plain_token
from domain.project_limits import ProjectBounds
from domain.resources import MILLI
from domain.selectors import SelectorSpec
from domain.services import GpuService
from tangram_web.pools.models import (
    ADDRESS_LENGTH,
    ConfigRevision,
    FleetRow,
    GpuServiceRow,
    NodeDrain,
    NodeGroupRow,
    Pool,
    Project,
    Resource,
    SelectorRow,
    Token,
)

#: Least time between two writes of ``last_used_at``: reading causes few writes.
_USE_NOTED_EVERY: Final = timedelta(minutes=1)
_LONGEST_TOKEN: Final = 256


def spec_of(resource: Resource) -> ResourceSpec:
    """Return the declaration of a cluster-wide resource."""
    declared = {"limit_units": resource.limit_units, **resource.spec}
    return msgspec.convert(declared, ResourceSpec)


def declared_resources() -> dict[str, ResourceSpec]:
    """Return the declaration of each cluster-wide resource by name, in one query."""
    return {resource.name: spec_of(resource) for resource in Resource.objects.all()}


def fleet_of(row: FleetRow) -> FleetSpec:
    """Return the declaration of a fleet."""
    return msgspec.convert(row.spec, FleetSpec)


def _sandbox_of(pool: Pool) -> SandboxRule | None:
    rule: SandboxRule | None = msgspec.convert(pool.sandbox or None, SandboxRule | None)
    return rule


def egress_of(pool: Pool) -> EgressRules | None:
    """Return the egress rules of a pool; None without hosts."""
    rules = msgspec.convert(pool.egress, EgressRules)
    return rules if rules.hosts else None


def _warm_of(pool: Pool) -> dict[str, int]:
    wanted: dict[str, int] = msgspec.convert(pool.warm, WarmImages)
    return wanted


def bounds_of(project: Project) -> ProjectBounds:
    """Return the limits that a project has in place of those of the installation."""
    return msgspec.convert(project.limits, ProjectBounds)


def _pool(pool: Pool) -> PoolConfig:
    grace, death = pool.node_grace_seconds, pool.node_dead_seconds
    return PoolConfig(
        pool.name, pool.policy, pool.paused, pool.light_by_default,
        None if grace == NODE_GRACE_SECONDS else grace,
        None if death == NODE_DEAD_SECONDS else death, _shares_of(pool),
        _sandbox_of(pool), pool.host_network, egress_of(pool), _warm_of(pool), steady_counts=True,
        shadow_pools=True, move_environments=pool.move_environments,
        rebalance_environments=pool.rebalance_environments,
        move_to_smaller=True, scan_after_shrinking=True,
    )  # fmt: skip


def current_config() -> Config:
    """Return the configuration as the scheduler knows it, under its latest revision."""
    specs = declared_resources()
    drains = dict(NodeDrain.objects.values_list("node", "finishing"))
    revision = ConfigRevision.objects.aggregate(latest=Max("number"))["latest"] or 0
    return Config(
        revision=revision,
        projects={
            project.name: ProjectConfig(
                project.name,
                project.default_pool_id,
                bounds_of(project),
            )
            for project in Project.objects.all()
        },
        pools={pool.name: _pool(pool) for pool in Pool.objects.all()},
        resources={name: spec.limit_units * MILLI for name, spec in specs.items()},
        limits={name: spec.limits for name, spec in specs.items() if spec.limits != Limits()},
        shares={name: spec.parts for name, spec in specs.items() if spec.shares},
        apis={name: spec.api for name, spec in specs.items() if spec.api is not None},
        services={
            row.name: msgspec.convert(row.spec, GpuService)
            for row in GpuServiceRow.objects.order_by("name")
        },
        fleets={row.name: fleet_of(row) for row in FleetRow.objects.order_by("name")},
        selectors={
            row.name: msgspec.convert(row.spec, SelectorSpec)
            for row in SelectorRow.objects.order_by("name")
        },
        node_groups={
            row.name: msgspec.convert(row.spec, NodeGroupSpec)
            for row in NodeGroupRow.objects.order_by("name")
        },
        drained_nodes=frozenset(drains),
        finishing_nodes=frozenset(node for node, finishing in drains.items() if finishing),
    )


def _shares_of(pool: Pool) -> dict[str, dict[str, Share]]:
    declared = msgspec.convert(pool.shares, PoolShares)
    return {kind: parts_of(shares) for kind, shares in declared.items() if shares}


def principal_of(raw_token: str, address: str = "") -> Principal | None:
    """Return the principal of ``raw_token``, in any form of it; None when it is unknown, expired or revoked.

    Its use from ``address`` is recorded, unless the token excludes that address; the caller refuses it.
    """
    if not raw_token.isascii() or len(raw_token) > _LONGEST_TOKEN:
        return None
    now = timezone.now()
    token = live_tokens(now).filter(digest=hash_token(plain_token(raw_token))).first()
    if token is None:
        return None
    principal = Principal(
        token.name, token.project_id, token.scope_set, token.public_id, tuple(token.networks),
        None if token.expiry is None else token.expiry.timestamp(),
    )  # fmt: skip
    if principal.admits(address):
        _note_use(token, now, address)
    return principal


def live_tokens(now: datetime) -> QuerySet[Token]:
    """Select the tokens that are valid at ``now``."""
    tokens: QuerySet[Token] = Token.objects.filter(
        Q(expiry=None) | Q(expiry__gt=now),
        Q(user=None) | Q(user__is_active=True),
        revoked_at=None,
    )
    return tokens


def tokens_seen_by(principal: Principal) -> QuerySet[Token]:
    """Select the tokens that ``principal`` may see."""
    tokens: QuerySet[Token] = Token.objects.order_by("-created")
    return tokens if principal.project is None else tokens.filter(project=principal.project)


def projects_seen_by(principal: Principal) -> QuerySet[Project]:
    """Select the projects that ``principal`` may see."""
    projects = Project.objects.order_by("name")
    return projects if principal.project is None else projects.filter(name=principal.project)


def _note_use(token: Token, now: datetime, address: str) -> None:
    due = now - _USE_NOTED_EVERY
    if token.last_used_at is None or token.last_used_at < due:
        Token.objects.filter(
            Q(last_used_at=None) | Q(last_used_at__lt=due), digest=token.digest
        ).update(last_used_at=now, last_used_from=address[:ADDRESS_LENGTH])
