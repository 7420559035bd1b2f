"""Visibility of the configuration: what a caller that is bound to projects sees of each kind.

Rules
1. A caller of all projects sees every object and member; secrets are never shown to any caller.
2. Capacity is shared, so pools, resources, services, fleets, selectors, node groups and drains are visible to all projects, as on the
   live pages: an action of any project may name them.
3. A project is visible to its own callers alone, and so is its entry in shares.
4. Members that describe how Tangram reaches a service, a worker or an API belong to the installation, and are
   left out for projects: addresses, commands, models, names of secrets, headers, variables.

`MEMBERS` is the whole policy. A member of a new kind must be listed there, as shown or as hidden; a
test compares it with the structs. The same filter serves REST, pages and files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from domain.apis import ApiConfig
from domain.fleets import FleetSpec
from domain.inventory import Config, PoolConfig, ProjectConfig
from domain.manifest import ResourceSpec
from domain.node_groups import NodeGroupSpec
from domain.principals import Principal
from domain.selectors import SelectorSpec
from domain.services import GpuService

T = TypeVar("T", bound=msgspec.Struct)
V = TypeVar("V")

#: Names of projects; None: all projects, future ones included.
Projects = Collection[str] | None


class MemberPolicy(NamedTuple):
    """Members of a struct: shown to projects, cut to their own entries, hidden from them."""

    shown: frozenset[str]
    #: Project → value.
    own: frozenset[str] = frozenset()
    #: Name of a resource → project → value.
    own_below: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


MEMBERS: Final[Mapping[type[msgspec.Struct], MemberPolicy]] = {
    PoolConfig: MemberPolicy(
        _names("name policy paused light_by_default node_grace_seconds node_dead_seconds")
        | _names("sandbox host_network egress warm steady_counts shadow_pools")
        | _names("move_environments rebalance_environments move_to_smaller scan_after_shrinking"),
        own_below=_names("shares"),
    ),
    ProjectConfig: MemberPolicy(_names("name default_pool limits")),
    ResourceSpec: MemberPolicy(
        _names("limit_units quotas learn_from_units breaker retries api"), own=_names("shares")
    ),
    ApiConfig: MemberPolicy(
        _names("methods paths timeout_seconds idle_timeout_seconds response_limit_bytes cache"),
        hidden=_names("base_url headers secret_header secret_prefix secret reach"),
    ),
    GpuService: MemberPolicy(
        _names(
            "engine degrees paths restore_timeout_seconds idle_timeout_seconds max_concurrency duration_seconds"
            " elasticity eager host_memory_bytes quarantined"
        ),
        hidden=_names("source command env warm_up python"),
    ),
    FleetSpec: MemberPolicy(
        _names(
            "engine gpus degrees pool slots start_seconds policy transfer predictor profile modelled"
        ),
        hidden=_names("source workers command python env"),
    ),
    SelectorSpec: MemberPolicy(
        _names(
            "target stages degrees contexts responses observes context_limit growth hysteresis switch_seconds pin"
            " hardware model engine"
        ),
    ),
    NodeGroupSpec: MemberPolicy(
        _names(
            "engine pool count min_count max_count cpus gpus memory_bytes cost_per_hour labels isolation drain_seconds"
            " max_surge max_unavailable"
        ),
        hidden=_names("image options"),
    ),
    Config: MemberPolicy(
        _names(
            "revision pools resources limits apis services fleets selectors node_groups drained_nodes finishing_nodes"
            " node_grace_seconds node_dead_seconds"
        ),
        own=_names("projects"),
        own_below=_names("shares"),
    ),
}


def projects_of(principal: Principal) -> Projects:
    """Return the projects that ``principal`` may see."""
    return None if principal.project is None else (principal.project,)


def visible(config: Config, projects: Projects) -> Config:
    """Return ``config`` as callers of ``projects`` see it."""
    if projects is None:
        return config
    return msgspec.structs.replace(
        visible_struct(config, projects),
        pools=_each(config.pools, projects),
        apis=_each(config.apis, projects),
        services=_each(config.services, projects),
        fleets=_each(config.fleets, projects),
        selectors=_each(config.selectors, projects),
        node_groups=_each(config.node_groups, projects),
    )


def visible_struct(value: T, projects: Projects) -> T:
    """Return ``value`` with own entries alone, and with hidden members at their defaults.

    A hidden member without a default is empty text.
    """
    if projects is None:
        return value
    policy = MEMBERS[type(value)]
    changed: dict[str, Any] = {}
    for field in msgspec.structs.fields(value):
        given = getattr(value, field.name)
        if field.name in policy.own:
            changed[field.name] = own_entries(given, projects)
        elif field.name in policy.own_below:
            changed[field.name] = own_entries_below(given, projects)
        elif isinstance(given, msgspec.Struct) and type(given) in MEMBERS:
            changed[field.name] = visible_struct(given, projects)
        elif field.name not in policy.shown:
            changed[field.name] = _empty(field)
    return msgspec.structs.replace(value, **changed)


def own_entries(by_project: Mapping[str, V], projects: Projects) -> dict[str, V]:
    """Return the entries of ``projects``."""
    return {name: each for name, each in by_project.items() if projects is None or name in projects}


def own_entries_below(
    by_resource: Mapping[str, Mapping[str, V]], projects: Projects
) -> dict[str, dict[str, V]]:
    """Return the entries of ``projects`` of each resource that has some."""
    found = {name: own_entries(each, projects) for name, each in by_resource.items()}
    return {name: each for name, each in found.items() if each}


def _each(values: Mapping[str, T], projects: Projects) -> dict[str, T]:
    return {name: visible_struct(value, projects) for name, value in values.items()}


def _empty(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return "" if field.default_factory is msgspec.NODEFAULT else field.default_factory()
