"""Fleets: the language-model workers behind one model name, as they are declared and as they are now.

A *generation* is one request to a model: an action of kind ``call`` with the target ``fleet:NAME``. Its worker is a server that
the configuration declares by its URL, or one of our own on GPUs of a pool. `placement` decides the worker and the order.

Rules
1. The name of a fleet is the OpenAI ``model`` of its requests. Names of workers are unique in a fleet, and so are numbers, which
   allocations name. A number is never used again: a generation on a worker that was removed names that one, and no other.
2. A worker that is drained or unhealthy gets no further generation. What runs there continues.
3. The slots of each worker are a resource, ``fleet:NAME#NUMBER``: a generation waits for its worker alone.
4. The gateway that has its connection holds a generation, as a trainer holds a lease: it renews the generation within
   `HOLD_SECONDS`, else that ends as `unknown`.
5. Prompts and tokens reach neither Redis nor the journal; counts of them do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from domain.apis import MAX_BODY_CHARACTERS, CallSpec, address_of, check_headers, check_path
from domain.engine_profiles import MODELLED, EngineProfile, check_profile
from domain.errors import InvalidRequest
from domain.fleet_engines import START_SECONDS, check_command
from domain.ids import ResourceId
from domain.resources import MAX_UNITS, MILLI

#: Prefix of the resources, and of the targets of calls.
FLEET: Final = "fleet:"
#: GPUs that a worker may have: they share one copy of the model.
DEGREES: Final = (1, 2, 4, 8)
#: Generations that a worker runs at once, where it is not declared.
DEFAULT_SLOTS: Final = 64
MAX_SLOTS: Final = 100_000
MAX_WORKERS: Final = 1024
MAX_GPUS: Final = 4096
#: Milli-units of ``fleet:NAME``: the slots of the workers alone are limits.
UNLIMITED_SLOTS: Final = MAX_UNITS * MILLI
#: Predictor of a fleet that names none.
DEFAULT_PREDICTOR: Final = "boosted"
#: Longest time between two renewals of a generation that its gateway holds.
HOLD_SECONDS: Final = 20.0
#: Paths of the OpenAI API, each relative to the URL of a worker.
GENERATION_PATHS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate")

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class FleetEngine(StrEnum):
    """What serves the model of a fleet, and so which controls its workers have."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TORCH = "torch"
    OPENAI = "openai"  # any server of that protocol: it has no priorities, and no caches are moved


class PlacementName(StrEnum):
    """Policy of placement."""

    HEDGED = "hedged"
    PAPER = "paper"


class TransferAdapter(StrEnum):
    """How the cache of a trajectory reaches another worker."""

    PROBED = ""  # what the workers say that they have
    SHARED = "shared"  # a store that all workers read: the route alone changes
    LMCACHE = "lmcache"
    TORCH = "torch"
    NONE = "none"  # the prompt is processed again


class PriorityUse(StrEnum):
    """What a worker does with the priority of a request, as far as a probe can tell."""

    UNKNOWN = ""
    LOWER_FIRST = "lower_first"
    GREATER_FIRST = "greater_first"
    ACCEPTED = "accepted"  # the engine takes priorities and does not say whether it ranks by them
    IGNORED = "ignored"
    REFUSED = "refused"  # a request with a priority is an error


class WorkerSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A worker that runs elsewhere."""

    #: Unique in its fleet.
    name: str
    #: Base address, without ``/v1``.
    url: str
    #: Generations that it runs at once; the engine's ``max_num_seqs``.
    slots: int = DEFAULT_SLOTS
    #: GPUs that it has.
    degree: int = 1
    #: It gets no further generation. A later drain or its end, by a verb, holds until this member changes.
    drained: bool = False


class FleetSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A fleet as the configuration declares it."""

    engine: FleetEngine
    #: Model of its workers: a name, or a path on the nodes; empty: the name of the fleet.
    source: str = ""
    workers: tuple[WorkerSpec, ...] = ()
    #: GPUs of ``pool`` for workers of our own; 0: it has none.
    gpus: int = 0
    #: Degrees that workers of our own may have.
    degrees: tuple[int, ...] = ()
    #: Pool of nodes whose GPUs they take.
    pool: str = "default"
    #: Generations that a worker of our own runs at once, for each of its GPUs.
    slots: int = DEFAULT_SLOTS
    #: Command of an engine of our own, with the placeholders of `domain.fleet_engines`; empty: the usual one of its kind.
    command: tuple[str, ...] = ()
    #: Interpreter with torch for engine ``torch``; empty: that of the node worker.
    python: str = ""
    #: Variables of its environment.
    env: dict[str, str] = {}
    #: An engine that does not answer for so long after its start is reported.
    start_seconds: float = START_SECONDS
    policy: PlacementName = PlacementName.HEDGED
    transfer: TransferAdapter = TransferAdapter.PROBED
    #: Predictor of the lengths of its trajectories, a name under ``tangram.predictors``; empty: `DEFAULT_PREDICTOR`.
    predictor: str = ""
    #: Measured times of its engine, which placement decides from; None: modelled ones.
    profile: EngineProfile | None = None
    #: Model whose modelled times stand in for a profile, one of `MODELLED`; empty: the smallest.
    modelled: str = ""


class FleetWorker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker as it is now."""

    #: Number that allocations name; the core sets it, requests leave it 0.
    number: int = 0
    name: str
    url: str
    slots: int = DEFAULT_SLOTS
    degree: int = 1
    #: It holds GPUs of the pool; the configuration does not declare it.
    own: bool = False
    #: It gets no further generation, by request.
    drained: bool = False
    #: Why it gets no further generation by its own fault; empty: it is healthy.
    unhealthy: str = ""
    #: Version of its weights; caches of another version are void.
    weights_version: int = 0
    #: What it does with priorities, as probed.
    priorities: PriorityUse = PriorityUse.UNKNOWN
    #: How caches are moved from and to it, as probed; empty: it was not probed.
    moves: TransferAdapter = TransferAdapter.PROBED

    @property
    def usable(self) -> bool:
        """Whether it gets further generations."""
        return not self.drained and not self.unhealthy


class WorkerFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """What changed of a worker; None: as it is."""

    name: str
    drained: bool | None = None
    #: Why it fails; empty: it works again.
    unhealthy: str | None = None
    weights_version: int | None = None
    priorities: PriorityUse | None = None
    moves: TransferAdapter | None = None


class GenerationSpec(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Identity and size of a generation, beside the trajectory and group of its action."""

    #: Trajectories that are trained on together; empty: none is known.
    batch: str = ""
    #: Trajectories of the batch; 0: not known.
    batch_size: int = 0
    #: Estimate of the tokens of its prompt.
    prompt_tokens: int = 0


class TokenUsage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Tokens of a generation, as its worker counted them."""

    prompt_tokens: int = 0
    sampled_tokens: int = 0
    #: Tokens of the prompt that were in its cache.
    cached_tokens: int = 0


def fleet_name(target: str) -> str | None:
    """Return the name in a call's target ``fleet:NAME``; None for another target."""
    return target[len(FLEET) :] if target.startswith(FLEET) else None


def fleet_resource(name: str) -> ResourceId:
    """Return the resource that costs of generations name."""
    return ResourceId(f"{FLEET}{name}")


def worker_resource(name: str, number: int) -> ResourceId:
    """Return the resource of the slots of one worker of fleet ``name``."""
    return ResourceId(f"{FLEET}{name}#{number}")


def fleet_of(resource: str) -> tuple[str, int] | None:
    """Return fleet and worker of the resource of a worker; None for another resource."""
    name, mark, number = resource.removeprefix(FLEET).rpartition("#")
    return (name, int(number)) if mark and resource.startswith(FLEET) else None


def check_fleet(name: str, spec: FleetSpec) -> None:
    """Raise InvalidRequest, naming the member, for a fleet that cannot be served as declared."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            "a name has up to 63 letters, digits, . _ and -: the model that requests name, without /"
            " (vLLM: --served-model-name)",
            pointer="/name",
        )
    if len(spec.source) > 1024:
        raise InvalidRequest("give a name or a path of up to 1024 characters", pointer="/source")
    if spec.predictor and not _NAME.fullmatch(spec.predictor):
        raise InvalidRequest(
            "give the name of an installed predictor, as boosted or history: up to 63 letters, digits, . _ and -",
            pointer="/predictor",
        )
    _check_workers(spec.workers)
    _check_own(spec)
    if spec.profile is not None:
        check_profile(spec.profile)
        _check_measured(spec, spec.profile)
    if spec.modelled and spec.modelled not in MODELLED:
        wrong = f"{spec.modelled!r} has no modelled times: give one of {', '.join(MODELLED)}, or a profile"
        raise InvalidRequest(wrong, pointer="/modelled")


def _check_measured(spec: FleetSpec, profile: EngineProfile) -> None:
    """Raise InvalidRequest for a degree whose times were not measured: placement could not decide."""
    measured = {each.degree for each in profile.degrees}
    used = {f"/workers/{place}/degree": each.degree for place, each in enumerate(spec.workers)}
    used |= {f"/degrees/{place}": degree for place, degree in enumerate(spec.degrees)}
    for pointer, degree in used.items():
        if degree not in measured:
            known = ", ".join(map(str, sorted(measured)))
            raise InvalidRequest(
                f"the profile has no degree {degree}, only {known}: measure it, or have no worker of it",
                pointer=pointer,
            )


def _check_workers(workers: tuple[WorkerSpec, ...]) -> None:
    if len(workers) > MAX_WORKERS:
        raise InvalidRequest(f"give up to {MAX_WORKERS} workers", pointer="/workers")
    names: dict[str, int] = {}
    urls: dict[str, int] = {}
    for place, worker in enumerate(workers):
        pointer = f"/workers/{place}"
        if not _NAME.fullmatch(worker.name):
            raise InvalidRequest(
                "a name has up to 63 letters, digits, . _ and -", pointer=f"{pointer}/name"
            )
        url = check_worker_url(worker.url, f"{pointer}/url")
        if names.setdefault(worker.name, place) != place:
            raise InvalidRequest(
                f"worker {names[worker.name]} has the name {worker.name!r}, too: give each its own",
                pointer=f"{pointer}/name",
            )
        if urls.setdefault(url, place) != place:
            raise InvalidRequest(
                f"worker {workers[urls[url]].name!r} has this address, too: its slots would count twice",
                pointer=f"{pointer}/url",
            )
        _check_slots(worker.slots, f"{pointer}/slots")
        _check_degree(worker.degree, f"{pointer}/degree")


def check_worker_url(url: str, pointer: str) -> str:
    """Return the address of a worker in one form. Raises InvalidRequest for one that cannot be called."""
    try:
        address = address_of(url)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{error}: a worker has an address like http://10.0.0.7:8000", pointer=pointer
        ) from None
    if address.prefix.rpartition("/")[2] == "v1":
        raise InvalidRequest("leave out /v1: requests bring their path", pointer=pointer)
    return f"{address.scheme}://{address.host}:{address.port}{address.prefix}"


def _check_slots(slots: int, pointer: str) -> None:
    if not 1 <= slots <= MAX_SLOTS:
        raise InvalidRequest(f"give 1 to {MAX_SLOTS} slots", pointer=pointer)


def _check_degree(degree: int, pointer: str) -> None:
    if degree not in DEGREES:
        known = ", ".join(map(str, DEGREES))
        raise InvalidRequest(f"a worker has {known} GPUs, not {degree}", pointer=pointer)


def _check_own(spec: FleetSpec) -> None:
    for place, degree in enumerate(spec.degrees):
        _check_degree(degree, f"/degrees/{place}")
    if len(set(spec.degrees)) != len(spec.degrees):
        raise InvalidRequest("give each degree once", pointer="/degrees")
    _check_slots(spec.slots, "/slots")
    check_command(spec.command, spec.python, spec.env, spec.start_seconds, own=spec.gpus > 0)
    if not 0 <= spec.gpus <= MAX_GPUS:
        raise InvalidRequest(f"give 0 to {MAX_GPUS} GPUs", pointer="/gpus")
    if bool(spec.gpus) != bool(spec.degrees):
        lacking = "/degrees" if spec.gpus else "/gpus"
        raise InvalidRequest(
            "workers of our own need both: gpus, how many they share, and degrees, how many each may have",
            pointer=lacking,
        )
    if spec.gpus and spec.engine is FleetEngine.OPENAI:
        raise InvalidRequest(
            "workers of our own need an engine that we start: vllm, sglang or torch; declare"
            " servers that run elsewhere as workers",
            pointer="/engine",
        )
    if spec.gpus and not reachable(spec.gpus, spec.degrees):
        near = _nearest(spec.gpus, spec.degrees)
        raise InvalidRequest(
            f"{spec.gpus} GPUs are no sum of workers with {_either(spec.degrees)} GPUs: give {_either(near)}"
            " GPUs, or allow another degree",
            pointer="/gpus",
        )


def reachable(gpus: int, degrees: Iterable[int]) -> bool:
    """Return whether ``gpus`` is a sum of ``degrees``, each as often as it takes.

    Degrees are powers of two, so the multiples of the smallest one are.
    """
    least = min(degrees, default=0)
    return bool(least) and gpus % least == 0


def _nearest(gpus: int, degrees: Iterable[int]) -> list[int]:
    least = min(degrees)
    below = gpus - gpus % least
    return [n for n in (below, below + least) if n]


def _either(counts: Iterable[int]) -> str:
    return " or ".join(str(n) for n in sorted(counts))


def check_generation(call: CallSpec) -> None:
    """Raise InvalidRequest, naming the member, for a call that no worker of a fleet takes."""
    if call.method != "POST":
        raise InvalidRequest(f"{call.target} takes POST", pointer="/call/method")
    check_path(call.path, "/call/path")
    if call.path not in GENERATION_PATHS:
        known = ", ".join(GENERATION_PATHS)
        raise InvalidRequest(f"{call.target} takes the paths {known}", pointer="/call/path")
    check_headers(call.headers, "/call/headers")
    if len(call.body) > MAX_BODY_CHARACTERS:
        raise InvalidRequest(f"at most {MAX_BODY_CHARACTERS} characters", pointer="/call/body")
