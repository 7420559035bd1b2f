"""Admission: turns a trainer's request into an action that the core accepts, or refuses it."""

from __future__ import annotations

import os
import re
from time import time_ns
from typing import Any

import msgspec

from contract.requests import ActionRequest, CallRequest
from domain.action import (
    PYTEST_XDIST,
    Action,
    EnvironmentSpec,
    ExecSpec,
    Kind,
    LeaseSpec,
)
from domain.apis import CallSpec, check_call
from domain.backends import LLM, check_pool_of
from domain.confinement import NETWORKS, check_network
from domain.elasticity import parse_elasticity
from domain.errors import InvalidRequest, NeverFits, NotFound
from domain.fleets import GenerationSpec, check_generation, fleet_name, fleet_resource
from domain.ids import ActionId, ResourceId, action_id
from domain.inventory import Config
from domain.principals import Principal
from domain.resources import MILLI, Cost, parse_units
from domain.rewards import JUNIT, RewardRule, check_no_reward_of_session, check_reward
from domain.services import GpuService, check_service_call, service_name
from domain.snapshots import SNAPSHOT_NAME
from scheduler.core.state.demand import check_feasible
from scheduler.runtime.capacity import CapacityView, OffersOfPools
from scheduler.runtime.gateway.request_parsing import json_text
from scheduler.runtime.gateway.session_checks import check_session

GPU = "gpu"
#: Most that is kept of an output stream: in the body store, and where results pass Redis.
MAX_OUTPUT_BYTES = 10 * 1024 * 1024
MAX_INLINE_OUTPUT_BYTES = 1024 * 1024
MAX_COMMAND_BYTES = 128 * 1024
MAX_ARGUMENTS = 4096
MAX_ENVIRONMENT_BYTES = 2**50
MAX_METADATA_BYTES = 64 * 1024
MAX_IMAGE_CHARACTERS = 512
MAX_VARIABLE_CHARACTERS = 256
#: Resources of one cost, and counts of one resource.
MAX_RESOURCES = 64
MAX_COUNTS = 1024
#: Readers of metadata have less stack left than the gateway, and must not fail on it.
MAX_NESTING = 100
#: Name of a container image, with its registry, tag and digest.
_IMAGE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:/@+-]{{0,{MAX_IMAGE_CHARACTERS - 1}}}")


def new_action_id() -> ActionId:
    """Return the id of a new action."""
    return action_id(time_ns() // 1_000_000, os.urandom(8))


class Admission:
    """Checks requests against the capacity of the system; `view` follows the journal."""

    def __init__(self) -> None:
        self.view = CapacityView(0, {"default": "default"}, {"default": []}, {})
        self._offers = OffersOfPools()
        #: Largest limit of an output stream.
        self.output_bytes = MAX_INLINE_OUTPUT_BYTES

    def project(self, principal: Principal, asked: str | None) -> str:
        """Return the project of a request. Raises NotFound for one that the caller may not see."""
        name = asked or principal.project or "default"
        if not principal.sees(name) or name not in self.view.projects:
            raise NotFound(f"there is no project {name!r}")
        return name

    def pool(self, asked: str | None, project: str) -> str:
        """Return the requested pool; '' leaves the choice to the task or project."""
        if asked is not None and asked not in self.view.pools:
            known = ", ".join(sorted(self.view.pools))
            raise InvalidRequest(f"there is no pool {asked!r}; there are {known}", pointer="/pool")
        return asked or ""

    def action(
        self,
        payload: ActionRequest,
        principal: Principal,
        door: str = "",
        generation: GenerationSpec | None = None,
    ) -> Action:
        """Return the action, with a new id; ``door`` is the facade that it came through.

        ``generation``: given by the router of a fleet, which has the connection that the answer goes to.

        Raises InvalidRequest with the field and the remedy.
        """
        project = self.project(principal, payload.project)
        pool = "" if payload.pool is None else self.pool(payload.pool, project)
        if payload.cost or payload.metadata:
            _check_sizes(payload)
        call = None if payload.call is None else _call(payload.call)
        cost, service = self._cost(payload, call, generation, pool or self.view.projects[project])
        _check_pools(cost, project)
        _check_key(payload, cost)
        _check_work(payload)
        if payload.exec is not None or payload.reward is not None:
            _check_result(payload, self.output_bytes)
        if payload.environment is not None:
            self.check_environment(payload.environment, project, payload.task, pool)
        if generation is None and (cost or payload.environment is not None):
            self._check_feasible(cost, payload, pool or self.view.projects[project])
        duration = None if service is None else service.duration_seconds
        profile = payload.elasticity or (None if service is None else service.elasticity)
        return Action(
            id=new_action_id(),
            project=project,
            task=payload.task,
            kind=payload.kind,
            cost=cost,
            trajectory=payload.trajectory,
            pool=pool,
            priority=payload.priority,
            step=payload.step,
            group=payload.group,
            family=payload.family,
            key=payload.key or (GPU if service is not None else None),
            duration_seconds=payload.duration_seconds or duration,
            elasticity=parse_elasticity(profile) if profile else None,
            malleable=payload.malleable,
            environment=payload.environment,
            exec=payload.exec,
            call=call,
            lease=_lease(payload),
            reward=payload.reward,
            timeout_seconds=payload.timeout_seconds,
            queue_timeout_seconds=payload.queue_timeout_seconds,
            replay_safe=payload.replay_safe,
            remaining_actions=payload.remaining_actions,
            metadata=payload.metadata,
            door=door,
            by=principal.name,
            generation=generation,
        )

    def _cost(
        self,
        payload: ActionRequest,
        call: CallSpec | None,
        generation: GenerationSpec | None,
        pool: str,
    ) -> tuple[Cost, GpuService | None]:
        """Return what an action takes, and the GPU service that it calls, if any."""
        cost: Cost = {}
        for name, counts in payload.cost.items():
            cost[name] = parse_units(counts, f"/cost/{name}")
        if call is None:
            return cost, None
        fleet = _find_fleet(self.view, call, generation)
        if fleet is not None:
            return {fleet: (MILLI,)}, None
        service = _find_service(self.view, call)
        if service is not None:
            _set_degrees(cost, service, self.view, pool)
        else:
            self._check_call(call)
            cost.setdefault(call.target, (MILLI,))
        return cost, service

    def check_environment(
        self, environment: EnvironmentSpec, project: str, task: str, pool: str
    ) -> None:
        """Raise InvalidRequest for an environment that no node can create, or its pool forbids."""
        if not 0 <= environment.memory_bytes <= MAX_ENVIRONMENT_BYTES:
            raise InvalidRequest("give 0 or more bytes", pointer="/environment/memory_bytes")
        if not 0 <= environment.disk_bytes <= MAX_ENVIRONMENT_BYTES:
            raise InvalidRequest("give 0 or more bytes", pointer="/environment/disk_bytes")
        if environment.snapshot is not None:
            _check_snapshot(environment)
        if environment.image is not None and not _IMAGE.fullmatch(environment.image):
            raise InvalidRequest(
                f"an image is named like registry/name:tag or name@sha256:…, in at most"
                f" {MAX_IMAGE_CHARACTERS} characters",
                pointer="/environment/image",
            )
        if not 1 <= environment.ttl_seconds <= 31_536_000:
            raise InvalidRequest("give 1 to 31536000 seconds", pointer="/environment/ttl_seconds")
        used = pool or self.view.pool_of_task(project, task)
        check_network(environment.network, used, self.view.networks.get(used, NETWORKS))

    def _check_call(self, call: CallSpec) -> None:
        api = self.view.apis.get(call.target)
        if api is None:
            known = ", ".join(sorted(self.view.apis)) or "none yet"
            raise InvalidRequest(
                f"there is no API {call.target!r} to call; there are: {known}",
                pointer="/call/target",
            )
        check_call(call, api)

    def _check_feasible(self, cost: Cost, payload: ActionRequest, pool: str) -> None:
        memory = payload.environment.memory_bytes if payload.environment else 0
        if not cost and not memory:
            return
        config = Config(resources=self.view.resources)
        check_feasible(cost, memory, config, pool, self._offers.of(self.view, pool))


def _check_sizes(payload: ActionRequest) -> None:
    if len(payload.cost) > MAX_RESOURCES:
        raise InvalidRequest(f"at most {MAX_RESOURCES} resources", pointer="/cost")
    for name, counts in payload.cost.items():
        if isinstance(counts, list) and len(counts) > MAX_COUNTS:
            raise InvalidRequest(
                f"at most {MAX_COUNTS} counts; give min and max", pointer=f"/cost/{name}"
            )
    check_metadata(payload.metadata)


def _check_pools(cost: Cost, project: str) -> None:
    """Raise InvalidRequest for seats of a pool that belongs to another project."""
    for name in cost:
        if name.startswith(LLM):
            check_pool_of(name.removeprefix(LLM), project, f"/cost/{name}")


def _check_key(payload: ActionRequest, cost: Cost) -> None:
    if payload.key is not None and payload.key not in cost:
        raise InvalidRequest(f"key {payload.key!r} is not in cost", pointer="/key")
    if payload.elasticity is not None and payload.key is None and len(cost) != 1:
        raise InvalidRequest(
            "elasticity needs key when cost names several resources or none", pointer="/key"
        )


def _check_work(payload: ActionRequest) -> None:
    kind = payload.kind
    for other, work in (
        (Kind.EXEC, payload.exec),
        (Kind.LEASE, payload.lease),
        (Kind.CALL, payload.call),
    ):
        if work is not None and other is not kind:
            raise InvalidRequest(f"kind is {kind}, so {other} must be absent", pointer=f"/{other}")
    if kind is Kind.CALL and payload.call is None:
        raise InvalidRequest("kind call needs call.target", pointer="/call")
    if kind is Kind.EXEC:
        if payload.exec is None:
            raise InvalidRequest("kind exec needs exec.command", pointer="/exec")
        check_session(payload, payload.exec)
        _check_exec(payload.exec)
    if kind is Kind.LEASE:
        if not payload.cost:
            raise InvalidRequest("a lease must name the resources that it holds", pointer="/cost")
        if not 0.1 <= _lease_ttl(payload) <= 86_400:
            raise InvalidRequest("give 0.1 to 86400 seconds", pointer="/lease/ttl_seconds")


def _lease_ttl(payload: ActionRequest) -> float:
    return payload.lease.ttl_seconds if payload.lease else LeaseSpec().ttl_seconds


def _lease(payload: ActionRequest) -> LeaseSpec | None:
    return payload.lease or (LeaseSpec() if payload.kind is Kind.LEASE else None)


def _check_exec(work: ExecSpec) -> None:
    if work.session is None and (not work.command or not work.command[0]):
        raise InvalidRequest("give at least the program to run", pointer="/exec/command")
    if len(work.command) > MAX_ARGUMENTS or sum(map(len, work.command)) > MAX_COMMAND_BYTES:
        raise InvalidRequest(
            f"at most {MAX_ARGUMENTS} arguments and {MAX_COMMAND_BYTES} characters; "
            "put long input into stdin or a file",
            pointer="/exec/command",
        )
    if any("\0" in argument for argument in work.command):
        raise InvalidRequest("NUL cannot be part of an argument", pointer="/exec/command")
    for name, value in work.env.items():
        if not 0 < len(name) <= MAX_VARIABLE_CHARACTERS or "=" in name or "\0" in name + value:
            raise InvalidRequest(f"{name[:64]!r} is not a variable name", pointer="/exec/env")
    if sum(len(k) + len(v) for k, v in work.env.items()) > MAX_COMMAND_BYTES:
        raise InvalidRequest(f"at most {MAX_COMMAND_BYTES} characters", pointer="/exec/env")
    _check_stored(work)
    if work.rewrite not in (None, PYTEST_XDIST):
        raise InvalidRequest(f"rewrite is {PYTEST_XDIST} or absent", pointer="/exec/rewrite")
    if work.cwd is not None:
        _check_directory(work.cwd, "/exec/cwd")


def _check_stored(work: ExecSpec) -> None:
    if work.stored_stdin is not None:
        # It could name the input of another project.
        raise InvalidRequest(
            "stored_stdin is not for requests; send stdin", pointer="/exec/stored_stdin"
        )


def _check_result(payload: ActionRequest, output_bytes: int) -> None:
    """Check what is kept of the output, and the rule of the reward."""
    if payload.exec is not None:
        _check_output(payload.exec, output_bytes)
    if payload.reward is not None:
        _check_reward(payload.reward, payload)


def _check_output(work: ExecSpec, most_bytes: int) -> None:
    limits = {"/exec/output_limit_bytes": work.output_limit_bytes}
    if work.output is not None:
        limits["/exec/output/limit_bytes"] = work.output.limit_bytes
    for pointer, limit in limits.items():
        if not 0 <= limit <= most_bytes:
            raise InvalidRequest(f"give 0 to {most_bytes} bytes", pointer=pointer)


def _check_directory(path: str, pointer: str) -> None:
    """Raise InvalidRequest for a path that climbs; the node knows which directories an environment has."""
    if ".." in path.split("/") or "\0" in path or len(path) > 4096:
        raise InvalidRequest(
            f"{path[:128]!r}: give a path without '..', absolute or relative to /workspace",
            pointer=pointer,
            code="path_outside_workspace",
        )


def check_path(path: str, pointer: str) -> None:
    """Raise InvalidRequest for a path that is not below the workspace."""
    inside = path == "/workspace" or path.startswith("/workspace/") or not path.startswith("/")
    if not inside or ".." in path.split("/") or "\0" in path or len(path) > 4096:
        raise InvalidRequest(
            f"{path[:128]!r} leaves the workspace; use a path relative to it, or below /workspace",
            pointer=pointer,
            code="path_outside_workspace",
        )


def check_metadata(metadata: dict[str, Any]) -> None:
    """Raise InvalidRequest for metadata of more than `MAX_NESTING` levels or `MAX_METADATA_BYTES`."""
    if not metadata:
        return
    level: list[Any] = [metadata]
    for _ in range(MAX_NESTING):
        if not level:
            _check_metadata_size(metadata)
            return
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [one for each in inside for one in each if isinstance(one, (dict, list))]
    raise InvalidRequest(
        f"metadata is nested more than {MAX_NESTING} levels deep", pointer="/metadata"
    )


def _check_metadata_size(metadata: dict[str, Any]) -> None:
    size = len(json_text(metadata, "/metadata").encode())
    if size > MAX_METADATA_BYTES:
        raise InvalidRequest(
            f"metadata has {size} bytes as JSON, at most {MAX_METADATA_BYTES} are stored;"
            " put large values into files of the trajectory",
            pointer="/metadata",
        )


def _call(payload: CallRequest) -> CallSpec:
    """Return a call with its body encoded."""
    given = payload.json is not msgspec.UNSET
    if given and payload.body is not None:
        raise InvalidRequest("give json or body, not both", pointer="/call/body")
    if payload.stored_body is not None:
        # It could name the body of another project.
        raise InvalidRequest(
            "stored_body is not for requests; send body", pointer="/call/stored_body"
        )
    headers, body = payload.headers, payload.body or ""
    if given:
        body = json_text(payload.json, "/call/json")
        if "content-type" not in {name.lower() for name in headers}:
            headers = {**headers, "Content-Type": "application/json"}
    return CallSpec(payload.target, payload.method, payload.path, headers, body, payload.stream)


def _check_reward(rule: RewardRule, payload: ActionRequest) -> None:
    kind = payload.kind
    if kind not in (Kind.EXEC, Kind.CALL):
        raise InvalidRequest("a reward is read from kind exec or call", pointer="/reward")
    check_reward(rule, is_call=kind is Kind.CALL)
    for name in ("file", "path") if rule.source == JUNIT else ("file",):
        if (path := getattr(rule, name)) is not None:
            check_path(path, f"/reward/{name}")
    for path in rule.files:
        check_path(path, "/reward/files")
        if not path.removeprefix("/workspace").strip("/.") or path.endswith("/"):
            raise InvalidRequest(f"{path[:128]!r} does not name a file", pointer="/reward/files")
    if payload.exec is not None and payload.exec.session is not None:
        check_no_reward_of_session(rule)


def _find_service(view: CapacityView, call: CallSpec) -> GpuService | None:
    """Return the GPU service that a call names (``service:<name>``); None for a call to an API.

    Raises InvalidRequest for a service that is not declared, or does not take this call.
    """
    name = service_name(call.target)
    if name is None:
        return None
    service = view.services.get(name)
    if service is None:
        known = ", ".join(sorted(view.services)) or "none yet"
        raise InvalidRequest(
            f"there is no service {name!r} to call; there are: {known}", pointer="/call/target"
        )
    check_service_call(call, service)
    return service


def _find_fleet(
    view: CapacityView, call: CallSpec, generation: GenerationSpec | None
) -> ResourceId | None:
    """Return the resource of the fleet that a call names (``fleet:<name>``); None for another call.

    Raises InvalidRequest for a fleet that is not declared, or does not take this call.
    """
    name = fleet_name(call.target)
    if name is None:
        return None
    if name not in view.fleets:
        known = ", ".join(sorted(view.fleets)) or "none yet"
        raise InvalidRequest(
            f"there is no fleet {name!r} to call; there are: {known}", pointer="/call/target"
        )
    if generation is None:
        raise InvalidRequest(
            "a generation needs the connection that its answer goes to, so it is no action of a trainer:"
            " name the fleet as model of an OpenAI request",
            pointer="/call/target",
        )
    check_generation(call)
    return fleet_resource(name)


def _set_degrees(cost: Cost, service: GpuService, view: CapacityView, pool: str) -> None:
    """Set the feasible counts of GPUs in ``cost``: the degrees of ``service`` that fit GPUs of ``pool``.

    Raises InvalidRequest for a count that is no degree, NeverFits when no GPU or node of the pool has the memory.
    """
    asked = cost.get(GPU)
    if asked is not None and not set(asked) <= set(service.units):
        known = ", ".join(str(degree.gpus) for degree in service.degrees)
        raise InvalidRequest(f"the service runs on {known} GPUs", pointer="/cost/gpu")
    counts = asked or service.units
    memory = view.gpu_memory_bytes.get(pool)
    if memory is not None:
        fitting = [n for n in counts if service.memory_bytes(n // MILLI) <= memory]
        if not fitting:
            least = service.memory_bytes(counts[-1] // MILLI)
            raise NeverFits(
                f"the service needs {least} bytes of each GPU, the largest of pool {pool!r} "
                f"has {memory}",
                pointer="/call/target",
            )
        counts = tuple(fitting)
    _check_host_memory(service, counts, view, pool)
    cost[GPU] = counts


def _check_host_memory(
    service: GpuService, counts: tuple[int, ...], view: CapacityView, pool: str
) -> None:
    """Raise NeverFits when no node of ``pool`` keeps enough host memory for services."""
    kept = view.service_memory_bytes.get(pool)
    least = min(service.host_bytes(n // MILLI) for n in counts)
    if kept is not None and least > kept:
        raise NeverFits(
            f"the service takes {least} bytes of host memory, the nodes of pool {pool!r} keep at most"
            f" {kept} for services: declare its host_memory_bytes, or set"
            " TANGRAM_NODE_SERVICE_MEMORY_BYTES",
            pointer="/call/target",
        )


def _check_snapshot(environment: EnvironmentSpec) -> None:
    pointer = "/environment/snapshot"
    if not SNAPSHOT_NAME.fullmatch(environment.snapshot or ""):
        raise InvalidRequest("this cannot be the name of a snapshot", pointer=pointer)
    if environment.image is not None:
        raise InvalidRequest("a snapshot has its image: give one of them", pointer=pointer)
