"""Changes to the configuration.

Each is one transaction with an audit entry and, if the configuration differs, a new revision; after
the commit the configuration is published to the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from django.core.exceptions import ValidationError
from django.db import models, transaction

from domain.confinement import REQUIRED
from domain.egress import EgressRules, check_egress
from domain.errors import Conflict, InvalidRequest, NotFound
from domain.fleets import FleetSpec, check_fleet
from domain.inventory import NODE_DEAD_SECONDS, NODE_GRACE_SECONDS, default_config
from domain.manifest import ResourceSpec, WarmImages, check_resource, read, read_pool_shares
from domain.policies import DEFAULT_POLICY, parse_policy
from domain.project_limits import ProjectBounds
from domain.resources import MILLI
from tangram_web.audit.services import SYSTEM, Actor, record
from tangram_web.lib import scheduler_client
from tangram_web.lib.bus import publish_config, wait_until_in_force
from tangram_web.lib.sealing import masked
from tangram_web.pools.models import (
    ConfigRevision,
    FleetRow,
    NodeDrain,
    Pool,
    Project,
    Resource,
)
from tangram_web.pools.secrets import sealed_spec
from tangram_web.pools.selectors import current_config

#: Kinds of resources that nodes report; a cluster-wide one of such a kind could never be granted.
_NODE_KINDS = frozenset({"cpu", "memory", "gpu"})


def pool_create(
    *,
    actor: Actor,
    name: str,
    policy: str = DEFAULT_POLICY,
    paused: bool = False,
    light_by_default: bool = True,
    node_grace_seconds: float = NODE_GRACE_SECONDS,
    node_dead_seconds: float = NODE_DEAD_SECONDS,
    shares: dict[str, Any] | None = None,
    sandbox: str = REQUIRED,
    host_network: bool = False,
    egress: dict[str, Any] | None = None,
    warm: dict[str, Any] | None = None,
    move_environments: bool = True,
    rebalance_environments: bool = True,
) -> Pool:
    """Add a pool. Raises Conflict for a taken name, InvalidRequest for an unknown policy.

    ``shares``: kind of resource → project → members of `domain.manifest.ShareSpec`.
    """
    parse_policy(policy)
    pool = Pool(
        name=name, policy=policy, paused=paused, light_by_default=light_by_default,
        node_grace_seconds=node_grace_seconds, node_dead_seconds=node_dead_seconds,
        shares=_pool_shares(shares), sandbox=sandbox, host_network=host_network,
        egress=_egress(egress), warm=_warm(warm), move_environments=move_environments,
        rebalance_environments=rebalance_environments,
    )  # fmt: skip
    with change(actor, "create", f"pool/{name}") as audit:
        insert(pool)
        audit.after = _described(pool)
    return pool


def pool_update(
    *,
    actor: Actor,
    name: str,
    policy: str | None = None,
    paused: bool | None = None,
    light_by_default: bool | None = None,
    node_grace_seconds: float | None = None,
    node_dead_seconds: float | None = None,
    shares: dict[str, Any] | None = None,
    sandbox: str | None = None,
    host_network: bool | None = None,
    egress: dict[str, Any] | None = None,
    warm: dict[str, Any] | None = None,
    move_environments: bool | None = None,
    rebalance_environments: bool | None = None,
) -> Pool:
    """Change a pool; None leaves a value as it is.

    Running actions keep their units; ``shares`` are replaced as a whole. Raises NotFound, InvalidRequest.
    """
    if policy is not None:
        parse_policy(policy)
    with change(actor, "update", f"pool/{name}") as audit:
        pool = Pool.objects.filter(name=name).first()
        if pool is None:
            raise NotFound(f"there is no pool {name!r}")
        audit.before = _described(pool)
        wanted = {
            "policy": policy, "paused": paused, "light_by_default": light_by_default,
            "node_grace_seconds": node_grace_seconds, "node_dead_seconds": node_dead_seconds,
            "shares": None if shares is None else _pool_shares(shares),
            "sandbox": sandbox, "host_network": host_network,
            "egress": None if egress is None else _egress(egress),
            "warm": None if warm is None else _warm(warm),
            "move_environments": move_environments,
            "rebalance_environments": rebalance_environments,
        }  # fmt: skip
        given = {field: value for field, value in wanted.items() if value is not None}
        for field, value in given.items():
            setattr(pool, field, value)
        check(pool)
        pool.save(update_fields=list(given))
        audit.after = _described(pool)
    return pool


def _egress(rules: dict[str, Any] | None) -> dict[str, Any]:
    checked = read(EgressRules, rules or {}, "/egress")
    check_egress(checked)
    plain: dict[str, Any] = msgspec.to_builtins(checked)
    return plain


def _warm(images: dict[str, Any] | None) -> dict[str, int]:
    wanted: dict[str, int] = read(WarmImages, images or {}, "/warm")
    return wanted


def _pool_shares(shares: dict[str, Any] | None) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(read_pool_shares(shares or {}))
    return plain


def project_create(
    *,
    actor: Actor,
    name: str,
    default_pool: str = "default",
    limits: dict[str, Any] | None = None,
) -> Project:
    """Add a project. Raises Conflict for a taken name, InvalidRequest for an unknown pool.

    ``limits`` are members of `domain.project_limits.ProjectBounds`.
    """
    project = Project(name=name, default_pool_id=default_pool, limits=_bounds(limits or {}))
    with change(actor, "create", f"project/{name}") as audit:
        _check_pool(default_pool)
        insert(project)
        audit.after = _described(project)
    return project


def project_update(
    *,
    actor: Actor,
    name: str,
    default_pool: str | None = None,
    limits: dict[str, Any] | None = None,
) -> Project:
    """Change a project; None leaves a value as it is, ``limits`` are replaced as a whole.

    Raises NotFound, InvalidRequest.
    """
    with change(actor, "update", f"project/{name}") as audit:
        project = Project.objects.filter(name=name).first()
        if project is None:
            raise NotFound(f"there is no project {name!r}")
        audit.before = _described(project)
        if default_pool is not None:
            _check_pool(default_pool)
            project.default_pool_id = default_pool
        if limits is not None:
            project.limits = _bounds(limits)
        project.save(update_fields=["default_pool_id", "limits"])
        audit.after = _described(project)
    return project


def _check_pool(name: str) -> None:
    if not Pool.objects.filter(name=name).exists():
        raise InvalidRequest(f"there is no pool {name!r}", pointer="/default_pool")


def _bounds(limits: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(read(ProjectBounds, limits, "/limits"))
    return plain


def resource_set(*, actor: Actor, name: str, **declared: Any) -> Resource:
    """Add or change a cluster-wide resource; members that are not given keep their values.

    ``declared`` are members of `domain.manifest.ResourceSpec`.
    """
    if name.partition(":")[0] in _NODE_KINDS:
        raise InvalidRequest("nodes report this kind of resource themselves", pointer="/name")
    with change(actor, "set", f"resource/{name}") as audit:
        resource = Resource.objects.filter(name=name).first()
        new, before = resource is None, resource or Resource(name=name)
        stored = {"limit_units": before.limit_units, **before.spec}
        # Markers are shorter than what they stand for, so the checks hold.
        known = {} if new else masked(stored)
        spec = read(ResourceSpec, {**known, **declared})
        check_resource(name, spec)
        api = None if new else read(ResourceSpec, stored).api
        spec = sealed_spec(spec, api.headers if api else {}, name, from_outside=True)
        if not new:
            audit.before = _described(before)
        plain = msgspec.to_builtins(spec)
        before.limit_units, before.spec = plain.pop("limit_units"), plain
        if new:
            insert(before)
        else:
            before.save(update_fields=["limit_units", "spec"])
        audit.after = _described(before)
    return before


def fleet_set(*, actor: Actor, name: str, spec: dict[str, Any], new: bool = False) -> FleetRow:
    """Add a fleet or replace its declaration; ``spec`` has members of `domain.fleets.FleetSpec`.

    A worker that keeps its name and address keeps its generations. ``new``: raises Conflict for a taken name.
    """
    declared = read(FleetSpec, spec)
    check_fleet(name, declared)
    with change(actor, "set", f"fleet/{name}") as audit:
        check_pool_of_fleet(name, declared, set(Pool.objects.values_list("name", flat=True)))
        row = FleetRow.objects.filter(name=name).first()
        if row is None or new:
            row = FleetRow(name=name, spec=msgspec.to_builtins(declared))
            insert(row)
        else:
            audit.before = _described(row)
            row.spec = msgspec.to_builtins(declared)
            row.save(update_fields=["spec"])
        audit.after = _described(row)
    return row


def fleet_delete(*, actor: Actor, name: str) -> None:
    """Delete a fleet: its waiting generations end, those that run continue. Raises NotFound."""
    with change(actor, "delete", f"fleet/{name}") as audit:
        row = FleetRow.objects.filter(name=name).first()
        if row is None:
            raise NotFound(f"there is no fleet {name!r}")
        audit.before = _described(row)
        row.delete()


def check_pool_of_fleet(name: str, spec: FleetSpec, pools: Container[str]) -> None:
    """Raise InvalidRequest when workers of our own would be on nodes of an unknown pool."""
    if spec.gpus and spec.pool not in pools:
        raise InvalidRequest(f"Fleet {name!r}: there is no pool {spec.pool!r}", pointer="/pool")


def node_drain(*, actor: Actor, node: str, reason: str = "", finishing: bool = False) -> NodeDrain:
    """Stop grants on a node; repeating it changes nothing.

    ``finishing``: trajectories that have their environment there continue. A drain without it replaces one with it.
    """
    with change(actor, "drain", f"node/{node}") as audit:
        drain = NodeDrain.objects.filter(node=node).first()
        if drain is None:
            drain = NodeDrain(node=node, reason=reason, finishing=finishing)
            insert(drain)
            audit.after = _described(drain)
        elif drain.finishing and not finishing:
            audit.before = _described(drain)
            drain.reason, drain.finishing = reason, False
            drain.save(update_fields=["reason", "finishing"])
            audit.after = _described(drain)
    return drain


def node_resume(*, actor: Actor, node: str) -> None:
    """Allow grants on a node again; repeating it changes nothing."""
    with change(actor, "resume", f"node/{node}") as audit:
        drain = NodeDrain.objects.filter(node=node).first()
        if drain is not None:
            audit.before = _described(drain)
            drain.delete()


def node_forget(*, actor: Actor, node: str, before: dict[str, Any] | None = None) -> bool:
    """Forget a node that does not come back; return False when the scheduler has not done so yet.

    The audit entry, the end of the drain and the scheduler's answer are one transaction: if the
    scheduler refuses, nothing changes. Without a leader the request waits for the next one.
    ``before`` is the audit's earlier value. Raises NotFound, Conflict while the node is alive or holds
    work, Unavailable without Redis.
    """
    with transaction.atomic():
        # A node that joins under this name later is a new one, without a drain.
        node_resume(actor=actor, node=node)
        record(actor, "forget", f"node/{node}", before, None)
        return scheduler_client.forget_node(node)


def ensure_defaults(sandbox: Callable[[], str] = lambda: REQUIRED) -> None:
    """Give a fresh database the default project, pool and resources; later calls do nothing.

    ``sandbox`` returns the rule of the default pool; it is called for a fresh database only.
    """
    if ConfigRevision.objects.exists():
        return
    defaults = default_config()
    with transaction.atomic():
        for pool in defaults.pools.values():
            Pool.objects.get_or_create(
                name=pool.name,
                defaults={"policy": pool.policy, "paused": pool.paused, "sandbox": sandbox()},
            )
        for project in defaults.projects.values():
            Project.objects.get_or_create(
                name=project.name, defaults={"default_pool_id": project.default_pool}
            )
        for name, milli in defaults.resources.items():
            Resource.objects.get_or_create(name=name, defaults={"limit_units": milli // MILLI})
        new_revision(SYSTEM)


def publish_current() -> None:
    """Publish the stored configuration; called at every start."""
    publish_config(current_config())


def _put_in_force() -> None:
    config = current_config()
    publish_config(config)
    wait_until_in_force(config.revision)


@dataclass
class Audit:
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


@contextmanager
def change(actor: Actor, verb: str, target: str) -> Iterator[Audit]:
    """Run the block as one change of the configuration."""
    audit = Audit()
    with transaction.atomic():
        # The oldest revision serves as the lock of the whole configuration: a snapshot must not
        # miss what another transaction is about to commit. (SQLite has one writer anyway.)
        ConfigRevision.objects.select_for_update().order_by("number").first()
        yield audit
        if audit.before == audit.after:
            return
        record(actor, verb, target, audit.before, audit.after)
        new_revision(actor)
        transaction.on_commit(_put_in_force)


def new_revision(actor: Actor) -> None:
    """Store the rows as a new revision."""
    config = current_config()
    config = msgspec.structs.replace(config, revision=config.revision + 1)
    ConfigRevision.objects.create(
        number=config.revision, author=actor.name, snapshot=msgspec.to_builtins(config)
    )


def insert(row: models.Model) -> None:
    """Validate and add a row. Raises InvalidRequest, Conflict for a name that is taken."""
    check(row)
    if type(row)._default_manager.filter(pk=row.pk).exists():
        raise Conflict(f"there is a {row._meta.verbose_name} {row.pk!r} already", pointer="/name")
    row.save(force_insert=True)


def check(row: models.Model) -> None:
    """Validate a row. Raises InvalidRequest that points at the member of the request."""
    try:
        row.clean_fields()
        row.clean()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise InvalidRequest(" ".join(messages), pointer=f"/{field}") from error


def _described(row: models.Model) -> dict[str, Any]:
    """Return a row's values for the audit, without its times."""
    return {
        field.name: field.value_from_object(row)
        for field in row._meta.concrete_fields
        if not isinstance(field, models.DateTimeField)
    }
