"""gpu_card: restore bandwidth, restore against disk, and many services on one card, of this machine.

    python3 -m benchmarks.gpu_card                  on an NVIDIA card, unattended; about 5 minutes
    python3 -m benchmarks.gpu_card --device cpu     the same steps, small, without one; 20 seconds

Needs Python 3.9 and torch, nothing of Tangram's other requirements, no network, and no model: weights
are random. It ends within ``--minutes`` (9): arrivals are cut, and services fewer, if the machine is slow.
Its sizes follow the machine: one model of up to 8 GiB (a quarter of host memory, half of the card's
free memory at most), then 20 services of up to 4 GiB that together take up to half of host memory and
are copied page-locked; three of them fit into the part of the card that is used. Disk: the size of
the one model, in the folder for temporary files (none without room there). Results go to
benchmarks/results/gpu_card-<card>.json, after each step: what was measured stays when a later one fails.

Wanted on a card: restores at 80 % or more of the bandwidth of one page-locked copy of the same run, and
after every restore the weights and the answer of before. Exit 1 when not, or when a step failed, which the
result names; exit 2, with what is missing, when there is no torch or no card. What ``cpu`` measures is host memory, and says nothing about cards.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu_card_machine import (
    Clock,
    Missing,
    describe,
    filesystem_of,
    find_device,
    free_bytes,
    host_bytes,
)
from benchmarks.record import store

MIB: Final = 2**20
GIB: Final = 2**30
WANTED_SHARE: Final = 0.8
SERVICES: Final = 20
FITTING: Final = 3
_RESTORES: Final = 7
#: No more services are made once this part of the time is over.
_PREPARED_BY: Final = 0.6
#: What a rival takes at most, in multiples of the time in which its calls arrive.
_DRAIN: Final = 1.5


def sizes(device: Any, options: argparse.Namespace) -> tuple[int, int]:
    """Return the bytes of the one model and of each service."""
    if device.type == "cpu":
        model, service = 64 * MIB, 4 * MIB
    else:
        host = host_bytes()
        free = free_bytes(device)
        model = min(8 * GIB, host // 4, free // 2)
        service = min(4 * GIB, host // 2 // SERVICES, free // (2 * FITTING))
    return options.model_mib * MIB or model, options.service_mib * MIB or service


def restoring(device: Any, nbytes: int) -> dict[str, Any]:
    """Measure restores of one model against one page-locked copy, and against disk."""
    from benchmarks.gpu_card_models import Service
    from managers.gpu.torch_worker.weights import give_back

    service = Service(nbytes, 1, device)
    size = service.weights.nbytes
    limit = size / one_copy_seconds(size, device)
    freed = []
    for _ in range(_RESTORES):
        service.restore()
        began = time.perf_counter()
        service.weights.release()
        freed.append(time.perf_counter() - began)
    taken = sorted(service.restore_seconds[1:])
    restore = taken[len(taken) // 2]
    disk = from_disk(service, device)
    if "disk_load_seconds" in disk:
        disk["disk_over_restore"] = round(disk["disk_load_seconds"] / restore, 1)
    service.weights.close()
    give_back(device)
    return {
        "weight_bytes": size,
        "copy_limit_bytes_per_second": round(limit),
        "restore_bytes_per_second": round(size / restore),
        "share_of_limit": round(size / restore / limit, 3),
        "restore_seconds": round(restore, 4),
        "release_seconds": round(sorted(freed)[len(freed) // 2], 4),
        **disk,
        "changed": service.changed,
    }


def one_copy_seconds(nbytes: int, device: Any) -> float:
    """Measure one copy of page-locked memory into memory of the device that is there already."""
    import torch

    from benchmarks.gpu_card_models import timed
    from managers.gpu.torch_worker.weights import PinnedMemory, give_back, stream_in

    host = PinnedMemory(nbytes, device)

    def measure() -> float:
        flat = torch.empty(nbytes, dtype=torch.uint8, device=device)
        return timed(lambda: stream_in(flat, host.flat, nbytes), device)

    try:
        return measure()
    finally:
        host.close()
        give_back(device)


def from_disk(service: Any, device: Any) -> dict[str, Any]:
    """Measure what loading the same weights takes: from disk, and from the page cache.

    Without room for them it says so, and measures nothing.
    """
    import torch

    from managers.gpu.torch_worker.weights import synchronize

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.pt"
        if shutil.disk_usage(folder).free < 2 * service.weights.nbytes:
            return {"disk": f"not measured: too little room in {folder}; set TMPDIR"}
        # Clones: views of one buffer would be stored as one, which no checkpoint is.
        state = {name: each.clone() for name, each in service.model.state_dict().items()}
        torch.save(state, path)
        state.clear()

        def load() -> float:
            began = time.perf_counter()
            loaded = torch.load(path, map_location="cpu")
            on_device = [each.to(device) for each in loaded.values()]
            synchronize(device)
            took = time.perf_counter() - began
            on_device.clear()
            return took

        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return {
            "disk": filesystem_of(folder),
            "disk_load_seconds": round(load(), 4),
            "page_cache_load_seconds": round(load(), 4),
        }


def sharing(device: Any, nbytes: int, options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """Let twenty services share the room of three, in the time that is left."""
    from benchmarks.gpu_card_models import Service
    from benchmarks.gpu_card_sharing import RIVALS, arrivals, compare

    on_card = device.type == "cuda"
    seconds = options.seconds or (40.0 if on_card else 2.0)
    call_seconds = options.call_seconds or (0.2 if on_card else 0.02)
    services: list[Service] = []
    while len(services) < SERVICES:
        services.append(Service(nbytes, len(services), device))
        if clock.spent_ratio() > _PREPARED_BY and len(services) > FITTING:
            break
    seconds = min(seconds, clock.left() / (len(RIVALS) * _DRAIN))
    calls = arrivals(seconds, options.load / call_seconds, len(services), FITTING)
    rivals = compare(services, FITTING, calls, call_seconds, clock)
    for each in services:
        each.weights.close()
    return {
        "services": len(services),
        "arrival_seconds": round(seconds, 1),
        "fitting": FITTING,
        "service_bytes": services[0].weights.nbytes,
        "load": options.load,
        "call_seconds": call_seconds,
        "calls": len(calls),
        "rivals": rivals,
        "restores": sum(len(each.restore_seconds) for each in services),
        "changed": sum(each.changed for each in services),
    }


def run(options: argparse.Namespace, found: dict[str, Any]) -> Iterator[str]:
    """Measure step by step into ``found``; yield the name of each step that is done. Raises Missing."""
    clock = Clock(options.minutes)
    device = find_device(options.device)
    found.update({"device": device.type, **describe(device), "as_wanted": False})
    model, service = sizes(device, options)
    before = free_bytes(device)
    print(f"{found['card']}: one model of {model // MIB} MiB …", flush=True)
    found["restore"] = restoring(device, model)
    print(found["restore"], flush=True)
    yield "restore"
    print(f"{SERVICES} services of {service // MIB} MiB, {FITTING} fit …", flush=True)
    found["sharing"] = sharing(device, service, options, clock)
    for name, result in found["sharing"]["rivals"].items():
        print(f"{name:7}", result, flush=True)
    found["not_given_back_bytes"] = before - free_bytes(device)
    found["changed_answers"] = found["restore"]["changed"] + found["sharing"]["changed"]
    fast = device.type == "cpu" or found["restore"]["share_of_limit"] >= WANTED_SHARE
    found["as_wanted"] = fast and found["changed_answers"] == 0
    yield "sharing"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all steps, storing after each; a step that fails is named in the result. Raises Missing."""
    found: dict[str, Any] = {}
    steps = run(options, found)
    try:
        for _ in steps:
            print(save(found, options), flush=True)
    except (RuntimeError, MemoryError, OSError) as error:  # torch's errors are RuntimeErrors
        if not found:
            raise
        found["failed"] = f"{type(error).__name__}: {error}"
        print(f"gpu_card: {found['failed']}", file=sys.stderr)
        print(save(found, options), flush=True)
    return found


def save(found: dict[str, Any], options: argparse.Namespace) -> Path:
    """Store what was found so far, under the card's name."""
    card = re.sub(r"[^a-z0-9]+", "-", found["card"].lower()).strip("-")
    return store("gpu_card", found, card, options.output)


def main() -> int:
    """Run and store; 0 when all is as wanted."""
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.gpu_card",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model-mib", type=int, default=0, help="of the one model; 0: see above")
    parser.add_argument("--service-mib", type=int, default=0, help="of each service; 0: see above")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="of arrivals per rival; 40, cpu 2"
    )
    parser.add_argument("--call-seconds", type=float, default=0.0, help="of a call; 0.2, cpu 0.02")
    parser.add_argument("--load", type=float, default=0.65, help="part of the card that calls need")
    parser.add_argument("--minutes", type=float, default=9.0, help="that the run may take")
    parser.add_argument("--output", type=Path, help="a folder for the results")
    options = parser.parse_args()
    try:
        found = measure(options)
    except Missing as missing:
        print(f"gpu_card: {missing}", file=sys.stderr)
        return 2
    return 0 if found["as_wanted"] else 1


if __name__ == "__main__":
    sys.exit(main())
