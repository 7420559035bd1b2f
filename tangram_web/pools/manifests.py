"""Configuration files: one document for each pool, project, resource, service, fleet, selector, node group and node.

    apiVersion: tangram/v1
    kind: Resource
    metadata: {name: "api:search"}
    spec:
      limit_units: 20
      quotas: [{units: 50, window_seconds: 1}]

Secrets (variables of services, headers of APIs) are written, and shown as markers: a document with a
marker keeps the value that is set.

A member that a spec omits has its default, so a document declares its object completely. Objects
that a file does not name stay as they are, unless the file is applied with prune.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

import msgspec
import yaml
from msgspec import Meta

from domain.confinement import SandboxRule
from domain.egress import EgressRules, check_egress
from domain.errors import InvalidRequest
from domain.fleets import FleetSpec, check_fleet
from domain.inventory import NODE_DEAD_SECONDS, NODE_GRACE_SECONDS, Config
from domain.manifest import (
    PoolShares,
    ResourceSpec,
    WarmImages,
    check_pool_shares,
    check_resource,
    read,
    resource_spec,
    share_specs,
)
from domain.node_groups import NodeGroupSpec, check_node_group
from domain.policies import DEFAULT_POLICY, parse_policy
from domain.project_limits import ProjectBounds
from domain.selectors import SelectorSpec, check_selector
from domain.services import GpuService, check_service
from tangram_web.pools.models import (
    LEAST_SILENCE_SECONDS,
    MOST_SILENCE_SECONDS,
    NAME_LENGTH,
    NAME_PATTERN,
)
from tangram_web.pools.secrets import masked_spec
from tangram_web.pools.yaml_text import documents

API_VERSION: Final = "tangram/v1"
_Name = Annotated[str, Meta(pattern=NAME_PATTERN.replace(r"\Z", "$"), max_length=NAME_LENGTH)]

_Silence = Annotated[float, Meta(ge=LEAST_SILENCE_SECONDS, le=MOST_SILENCE_SECONDS)]


class Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of an object."""

    name: _Name


class PoolSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A set of nodes with one queue and one policy."""

    policy: str = DEFAULT_POLICY
    paused: bool = False
    #: Actions that declare no cpu run on shared cores if the history of their family suggests it.
    light_by_default: bool = True
    #: After this time without a heartbeat, the actions of a node end as unknown.
    node_grace_seconds: _Silence = NODE_GRACE_SECONDS
    #: After this time, its trajectories end.
    node_dead_seconds: _Silence = NODE_DEAD_SECONDS
    #: Kind of resource (``cpu``, ``gpu``) → project → its share of all nodes of the pool together.
    shares: PoolShares = {}
    #: ``required``: nodes without a sandbox get no actions. Absent: as it is; a new pool requires it.
    sandbox: SandboxRule | None = None
    #: Environments may use the network of their node. Absent: as it is; in a new pool they may not.
    host_network: bool | None = None
    #: Hosts that environments with ``network: egress`` reach. Absent: as it is; a new pool has none.
    egress: EgressRules | None = None
    #: Prepared environments that each node keeps, image → number; ``""`` is no image.
    warm: WarmImages = {}
    #: Idle environments leave a node that lets its trajectories finish, for another node of the pool.
    move_environments: bool = True
    #: An action that waits for its node moves with its environment to a node that has room.
    rebalance_environments: bool = True


class ProjectSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An owner of tasks and tokens."""

    default_pool: _Name = "default"
    #: Instead of the limits of the installation.
    limits: ProjectBounds = ProjectBounds()


class NodeSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The desired state of a node, which need not have joined yet."""

    drained: bool = False
    reason: Annotated[str, Meta(max_length=500, pattern=r"^[^\x00]*$")] = ""
    #: While it is drained: trajectories that have their environment there continue.
    finishing: bool = False


class _Manifest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    apiVersion: Literal["tangram/v1"]  # noqa: N815 - the name in Kubernetes manifests
    metadata: Metadata


class PoolManifest(_Manifest, frozen=True, kw_only=True, tag="Pool"):
    """A pool."""

    spec: PoolSpec = PoolSpec()


class ProjectManifest(_Manifest, frozen=True, kw_only=True, tag="Project"):
    """A project."""

    spec: ProjectSpec = ProjectSpec()


class ResourceManifest(_Manifest, frozen=True, kw_only=True, tag="Resource"):
    """A cluster-wide resource, with its limits, shares and API."""

    spec: ResourceSpec


class ServiceManifest(_Manifest, frozen=True, kw_only=True, tag="GpuService"):
    """A model on GPUs, called as ``service:<name>``."""

    spec: GpuService


class FleetManifest(_Manifest, frozen=True, kw_only=True, tag="Fleet"):
    """Workers of a language model, called as ``fleet:<name>``."""

    spec: FleetSpec


class SelectorManifest(_Manifest, frozen=True, kw_only=True, tag="Selector"):
    """A selector of degrees of parallelism, for a GPU service or an outside trainer."""

    spec: SelectorSpec


class NodeGroupManifest(_Manifest, frozen=True, kw_only=True, tag="NodeGroup"):
    """Nodes that an engine of the cluster places."""

    spec: NodeGroupSpec


class NodeManifest(_Manifest, frozen=True, kw_only=True, tag="Node"):
    """A node."""

    spec: NodeSpec = NodeSpec()


Manifest = (
    PoolManifest
    | ProjectManifest
    | ResourceManifest
    | ServiceManifest
    | FleetManifest
    | SelectorManifest
    | NodeGroupManifest
    | NodeManifest
)
#: In the order in which objects may refer to others.
KINDS: Final = (
    "Pool", "Project", "Resource", "GpuService", "Fleet", "Selector", "NodeGroup", "Node",
)  # fmt: skip
_TYPES: Final[dict[str, Any]] = {
    "Pool": PoolManifest,
    "Project": ProjectManifest,
    "Resource": ResourceManifest,
    "GpuService": ServiceManifest,
    "Fleet": FleetManifest,
    "Selector": SelectorManifest,
    "NodeGroup": NodeGroupManifest,
    "Node": NodeManifest,
}
#: (kind, name) → spec.
Wanted = dict[tuple[str, str], Any]


def parse(text: str) -> Wanted:
    """Return the specs in a file. Raises InvalidRequest with line and column."""
    wanted: Wanted = {}
    for document in documents(text):
        try:
            manifest = _manifest(document.value)
        except InvalidRequest as error:
            place = document.place(error.pointer)
            raise InvalidRequest(f"{place}: {error}", pointer=error.pointer) from None
        kind, name = type(manifest).__struct_config__.tag, manifest.metadata.name
        if (kind, name) in wanted:
            raise InvalidRequest(f"{document.place('')}: {kind} {name!r} appears twice")
        wanted[str(kind), name] = manifest.spec
    return wanted


def _manifest(value: Any) -> Manifest:
    if not isinstance(value, dict):
        raise InvalidRequest("a document has apiVersion, kind, metadata and spec")
    named = value.get("kind")
    kind = _TYPES.get(named) if isinstance(named, str) else None
    if kind is None:
        raise InvalidRequest(f"kind is one of {', '.join(KINDS)}", pointer="/kind")
    manifest: Any = read(kind, value)
    try:
        if isinstance(manifest, ResourceManifest):
            check_resource(manifest.metadata.name, manifest.spec)
        elif isinstance(manifest, ServiceManifest):
            check_service(manifest.metadata.name, manifest.spec)
        elif isinstance(manifest, FleetManifest):
            check_fleet(manifest.metadata.name, manifest.spec)
        elif isinstance(manifest, SelectorManifest):
            check_selector(manifest.metadata.name, manifest.spec)
        elif isinstance(manifest, NodeGroupManifest):
            check_node_group(manifest.spec)
        elif isinstance(manifest, PoolManifest):
            parse_policy(manifest.spec.policy)
            check_pool_shares(manifest.spec.shares)
            check_egress(manifest.spec.egress or EgressRules())
    except InvalidRequest as error:
        raise InvalidRequest(str(error), pointer=f"/spec{error.pointer}") from None
    checked: Manifest = manifest
    return checked


def specs_of(config: Config) -> Wanted:
    """Return the specs that ``config`` is made of."""
    found: Wanted = {}
    for pool in config.pools.values():
        found["Pool", pool.name] = PoolSpec(
            pool.policy,
            pool.paused,
            pool.light_by_default,
            config.grace_of(pool.name),
            config.death_of(pool.name),
            {kind: share_specs(parts) for kind, parts in pool.shares.items()},
            pool.sandbox,
            pool.host_network,
            pool.egress,
            dict(pool.warm),
            pool.move_environments,
            pool.rebalance_environments,
        )
    for project in config.projects.values():
        found["Project", project.name] = ProjectSpec(project.default_pool, project.limits)
    for name in config.resources:
        found["Resource", name] = resource_spec(config, name)
    for name, service in config.services.items():
        found["GpuService", name] = service
    for name, fleet in config.fleets.items():
        found["Fleet", name] = fleet
    for name, selector in config.selectors.items():
        found["Selector", name] = selector
    for name, group in config.node_groups.items():
        found["NodeGroup", name] = group
    for node in config.drained_nodes:
        found["Node", node] = NodeSpec(drained=True, finishing=node in config.finishing_nodes)
    return found


def plain(wanted: Wanted) -> list[dict[str, Any]]:
    """Return specs as documents, ordered by kind and name."""
    ordered = sorted(wanted.items(), key=lambda item: (KINDS.index(item[0][0]), item[0][1]))
    return [
        {
            "apiVersion": API_VERSION,
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec_as_data(spec),
        }
        for (kind, name), spec in ordered
    ]


def spec_as_data(spec: Any) -> dict[str, Any]:
    """Return the members of a spec that differ from their defaults, as they are shown: without secrets."""
    return stored_data(masked_spec(spec))


def stored_data(spec: Any) -> dict[str, Any]:
    """Return the members of a spec that differ from their defaults, with sealed secrets."""
    return {name: value for name, value in msgspec.to_builtins(spec).items() if value != {}}


def to_yaml(manifests: Iterable[dict[str, Any]]) -> str:
    """Return documents as YAML text."""
    return yaml.safe_dump_all(manifests, sort_keys=False, allow_unicode=True, explicit_start=True)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of one document."""
    return msgspec.json.schema(Manifest)
