"""Apply, diff and rollback of the whole configuration.

All changed objects are one transaction, one revision and one `ConfigApplied`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from django.db import transaction
from django.db.models import ProtectedError

from domain.confinement import REQUIRED
from domain.errors import Conflict, InvalidRequest, NotFound
from domain.host_memory import why_no_room
from domain.inventory import Config, ResourceInventory
from domain.selectors import check_target
from tangram_web.audit.services import Actor
from tangram_web.pools.manifests import KINDS, NodeSpec, PoolSpec, Wanted, spec_as_data, specs_of
from tangram_web.pools.models import (
    ConfigRevision,
    FleetRow,
    GpuServiceRow,
    NodeDrain,
    NodeGroupRow,
    Pool,
    Project,
    Resource,
    SelectorRow,
)
from tangram_web.pools.secrets import sealed
from tangram_web.pools.selectors import current_config
from tangram_web.pools.services import change, check, check_pool_of_fleet
from tangram_web.pools.visibility import Projects, visible
from tangram_web.records.models import NodeAvailability, NodeRecord

#: Objects of a new installation that cannot be deleted.
_KEPT = frozenset({("Pool", "default"), ("Project", "default")})


#: Kind → its rows, which store the whole spec.
_SPEC_ROWS: Final[
    dict[str, type[GpuServiceRow] | type[FleetRow] | type[SelectorRow] | type[NodeGroupRow]]
] = {
    "GpuService": GpuServiceRow,
    "Fleet": FleetRow,
    "Selector": SelectorRow,
    "NodeGroup": NodeGroupRow,
}
#: A row of the configuration.
Row = Pool | Project | Resource | GpuServiceRow | FleetRow | SelectorRow | NodeGroupRow | NodeDrain


class Change(NamedTuple):
    """The change of one object; specs as plain data, None before creation and after deletion."""

    verb: str
    kind: str
    name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class AuditNote(NamedTuple):
    """The verb and target of the audit entry, with values beside those that changed."""

    verb: str = "apply"
    target: str = "configuration"
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}


APPLIED: Final = AuditNote()


class Stale(Conflict):
    """The configuration has changed since the caller read it."""


def changes(wanted: Wanted, config: Config, *, prune: bool) -> list[Change]:
    """Return the changes from ``config`` to ``wanted``, in an order that keeps references valid."""
    there = specs_of(config)
    found = []
    for key in sorted(wanted, key=_order):
        before, after = there.get(key), wanted[key]
        after = _completed(before, after)
        gone = isinstance(after, NodeSpec) and not after.drained  # only a drain has a row
        if _same(before, after) or (gone and before is None):
            continue
        found.append(_change("delete" if gone else "update" if before else "create", key, before,
                             None if gone else after))  # fmt: skip
    if prune:
        gone_keys = sorted(there.keys() - wanted.keys() - _KEPT, key=_order, reverse=True)
        found += [_change("delete", key, there[key], None) for key in gone_keys]
    return found


def _completed(before: Any, after: Any) -> Any:
    """Return ``after`` with the members that a pool keeps where a document does not name them."""
    if not isinstance(after, PoolSpec):
        return after
    kept = (
        before if isinstance(before, PoolSpec) else PoolSpec(sandbox=REQUIRED, host_network=False)
    )
    return msgspec.structs.replace(
        after,
        sandbox=kept.sandbox if after.sandbox is None else after.sandbox,
        host_network=kept.host_network if after.host_network is None else after.host_network,
        egress=kept.egress
        if after.egress is None
        else after.egress
        if after.egress.hosts
        else None,
    )


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, NodeSpec) and isinstance(after, NodeSpec):
        # The reason has no effect.
        return (before.drained, before.finishing) == (after.drained, after.finishing)
    return bool(before == after)


def _order(key: tuple[str, str]) -> tuple[int, str]:
    return KINDS.index(key[0]), key[1]


def _change(verb: str, key: tuple[str, str], before: Any, after: Any) -> Change:
    def plain(spec: Any) -> dict[str, Any] | None:
        return None if spec is None else spec_as_data(spec)

    return Change(verb, *key, plain(before), plain(after))


def apply(
    wanted: Wanted, *, actor: Actor, prune: bool = False, expected: int | None = None,
    note: AuditNote = APPLIED,
) -> tuple[Config, list[Change]]:  # fmt: skip
    """Apply ``wanted``; return the resulting configuration and the changes.

    ``expected`` is the revision that the caller has read: Stale when the current one differs.
    Raises InvalidRequest and Conflict; then nothing has changed.
    """
    with change(actor, note.verb, note.target) as audit:
        config = current_config()
        if expected is not None and config.revision != expected:
            raise Stale(f"the configuration is at revision {config.revision}, not {expected}")
        _check_references(wanted, config)
        wanted = sealed(wanted, config, from_outside=False)
        todo = changes(wanted, config, prune=prune)
        for each in todo:
            _apply_change(each, wanted)
        declared = {each.name for each in todo if each.kind == "GpuService" and each.after}
        applied = current_config()
        check_host_memory(applied, declared)
        for name, selector in applied.selectors.items() if todo else ():
            check_target(name, selector, applied.services)
        if todo:
            audit.before = {**note.before, **{f"{c.kind}/{c.name}": c.before for c in todo}}
            audit.after = {**note.after, **{f"{c.kind}/{c.name}": c.after for c in todo}}
    return current_config(), todo


class _RolledBack(Exception):
    """Ends the transaction of a trial."""


def trial(wanted: Wanted, *, actor: Actor, prune: bool = False) -> Config:
    """Return the configuration that `apply` would result in; nothing is changed.

    Applied and rolled back in one transaction. Raises InvalidRequest and Conflict.
    """
    found: list[Config] = []
    try:
        with transaction.atomic():
            found.append(apply(wanted, actor=actor, prune=prune)[0])
            raise _RolledBack
    except _RolledBack:
        return found[0]


def roll_back(
    number: int, *, actor: Actor, expected: int | None = None
) -> tuple[Config, list[Change]]:
    """Apply an earlier revision as a new one."""
    return apply(specs_of(revision(number)), actor=actor, prune=True, expected=expected)


def revision(number: int) -> Config:
    """Return the configuration of a revision. Raises NotFound."""
    row = ConfigRevision.objects.filter(number=number).first()
    if row is None:
        raise NotFound(f"there is no revision {number}")
    return msgspec.convert(row.snapshot, Config)


def revisions_seen_by(projects: Projects, limit: int) -> list[ConfigRevision]:
    """Return the latest revisions that changed what ``projects`` see, the latest first."""
    rows = list(ConfigRevision.objects.order_by("-number")[: limit + 1])
    if projects is None:
        return rows[:limit]
    seen = [
        msgspec.structs.replace(
            visible(msgspec.convert(row.snapshot, Config), projects), revision=0
        )
        for row in rows
    ]
    changed = [at for at in range(len(rows)) if at + 1 == len(rows) or seen[at] != seen[at + 1]]
    return [rows[at] for at in changed][:limit]


def _check_references(wanted: Wanted, config: Config) -> None:
    pools = {name for kind, name in wanted if kind == "Pool"} | config.pools.keys()
    for (kind, name), spec in wanted.items():
        if kind == "Project" and spec.default_pool not in pools:
            raise InvalidRequest(f"Project {name!r}: there is no pool {spec.default_pool!r}")
        if kind == "Fleet":
            check_pool_of_fleet(name, spec, pools)
        if kind == "NodeGroup" and spec.pool not in pools:
            raise InvalidRequest(
                f"NodeGroup {name!r}: there is no pool {spec.pool!r}", pointer="/pool"
            )


def _set_confinement(row: Pool, spec: PoolSpec) -> None:
    """Set the members that a pool keeps where a document does not name them."""
    row.sandbox = spec.sandbox or row.sandbox
    if spec.host_network is not None:
        row.host_network = spec.host_network
    if spec.egress is not None:
        row.egress = msgspec.to_builtins(spec.egress)


def _apply_change(each: Change, wanted: Wanted) -> None:
    spec = wanted.get((each.kind, each.name))
    row: Row
    if each.kind == "Pool":
        row = Pool.objects.filter(name=each.name).first() or Pool(name=each.name)
        if spec is not None:
            _set_confinement(row, spec)
            row.policy, row.paused = spec.policy, spec.paused
            row.light_by_default = spec.light_by_default
            row.move_environments = spec.move_environments
            row.rebalance_environments = spec.rebalance_environments
            row.node_grace_seconds = spec.node_grace_seconds
            row.node_dead_seconds = spec.node_dead_seconds
            row.shares, row.warm = msgspec.to_builtins(spec.shares), dict(spec.warm)
    elif each.kind == "Project":
        row = Project(name=each.name)
        if spec is not None:
            row.default_pool_id = spec.default_pool
            row.limits = msgspec.to_builtins(spec.limits)
    elif each.kind == "Resource":
        row = Resource(name=each.name)
        if spec is not None:
            members = msgspec.to_builtins(spec)
            row.limit_units, row.spec = members.pop("limit_units"), members
    elif each.kind in _SPEC_ROWS:
        row = _SPEC_ROWS[each.kind](name=each.name)
        if spec is not None:
            row.spec = msgspec.to_builtins(spec)
    else:
        row = NodeDrain(node=each.name)
        if spec is not None:
            row.reason, row.finishing = spec.reason, spec.finishing
    _store(row, each)


def _store(row: Row, each: Change) -> None:
    if each.verb == "delete":
        try:
            type(row)._default_manager.filter(pk=row.pk).delete()
        except ProtectedError:
            raise Conflict(f"{each.kind} {each.name!r} is still in use") from None
        return
    try:
        check(row)
    except InvalidRequest as error:
        raise InvalidRequest(f"{each.kind} {each.name!r}: {error}") from None
    known = type(row)._default_manager.filter(pk=row.pk)
    if not known.exists():
        row.save(force_insert=True)
        return
    fields = [f for f in row._meta.concrete_fields if f.name not in ("created_at", "since")]
    known.update(**{f.attname: getattr(row, f.attname) for f in fields if not f.primary_key})


def check_host_memory(config: Config, changed: set[str]) -> None:
    """Raise InvalidRequest when the host memory of the nodes cannot hold the ``changed`` GPU services.

    The message names the service, the node and a remedy. Lost nodes do not count.
    """
    if not changed & config.services.keys():
        return
    rows = NodeRecord.objects.exclude(state=NodeAvailability.LOST)
    nodes = {
        row.name: msgspec.convert(row.resources["gpu"], ResourceInventory)
        for row in rows
        if "gpu" in row.resources
    }
    if why := why_no_room(changed, config.services, nodes):
        raise InvalidRequest(why, pointer="/spec/host_memory_bytes")
