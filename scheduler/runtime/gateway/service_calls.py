"""What a call to a GPU service costs, and whether it can ever be served.

A call names its service as ``service:<name>``. Its feasible counts of ``gpu`` are the degrees that
the service declares; an action may choose among them. How long it takes, and what it gains from
more GPUs, is the service's unless the action says so itself.
"""

from __future__ import annotations

from domain.apis import CallSpec
from domain.errors import InvalidRequest, NeverFits
from domain.resources import MILLI, Cost
from domain.services import GpuService, check_service_call, service_name
from scheduler.runtime.capacity import CapacityView

RESOURCE = "gpu"


def find_service(view: CapacityView, call: CallSpec) -> GpuService | None:
    """Return the service that is called; None for a call to an API.

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


def ask_for_chunk(cost: Cost, service: GpuService, view: CapacityView, pool: str) -> None:
    """Put the degrees of ``service`` that fit GPUs of ``pool`` into ``cost``.

    Raises InvalidRequest for a count that is no degree, NeverFits when no GPU there, or no node, has the memory.
    """
    asked = cost.get(RESOURCE)
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
    cost[RESOURCE] = counts


def _check_host_memory(
    service: GpuService, counts: tuple[int, ...], view: CapacityView, pool: str
) -> None:
    """Raise NeverFits when no node of ``pool`` keeps so much host memory for services."""
    kept = view.service_memory_bytes.get(pool)
    least = min(service.host_bytes(n // MILLI) for n in counts)
    if kept is not None and least > kept:
        raise NeverFits(
            f"the service takes {least} bytes of host memory, the nodes of pool {pool!r} keep at most"
            f" {kept} for services: declare its host_memory_bytes, or set"
            " TANGRAM_NODE_SERVICE_MEMORY_BYTES",
            pointer="/call/target",
        )
