"""Selectors: the degree of parallelism that each stage of a training step gets, as declared and as measured.

A *selector* steers one GPU service (``target: service:NAME``) or an outside trainer (no target). Its *profile* has what was
measured: for each stage, degree, context length and number of responses a *cell* with tokens per GPU and second and the peak
memory, or the fact that it ran out of memory. The decision is made in `scheduler.core.residency.parallelism`.

Rules
1. A degree is a `Parallelism` (tp, pp, dp). An instance of a service takes tp · pp GPUs; its dp are instances on other chunks, which
   the GPU manager starts and evicts as calls need them. The degrees of a service's selector differ in tp · pp.
2. Out of memory is a result: a cell with ``oom`` has no times. What is not measured is absent, never 0.
3. A profile belongs to one hardware, model and engine (`ProfileIdentity`). Cells of another identity make another profile; a
   selector that names an identity uses that one, else the one that changed last.
4. A profile is revised by each change of its cells. A decision names the revision that it was made from.
5. Context lengths are tokens of one response with its prompt, bytes are of one GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from domain.errors import InvalidRequest
from domain.fleets import FLEET
from domain.services import PREFIX, GpuService, service_name

#: Cells of one profile, and profiles of one selector: a snapshot of the scheduler has them all.
MOST_CELLS: Final = 4096
MOST_PROFILES: Final = 8
MOST_DEGREES: Final = 32
MOST_LENGTHS: Final = 64
MOST_TOKENS: Final = 2**40
#: GPUs of one degree, at most.
MOST_GPUS: Final = 65_536
#: Targets of the calls whose contexts count, beside the selector's own.
_OBSERVED: Final = (FLEET, PREFIX, "llm:")

NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DEGREE: Final = re.compile(r"tp(\d{1,5})(?:pp(\d{1,5}))?(?:dp(\d{1,5}))?")

Tokens = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
_Factor = Annotated[int, Meta(ge=1, le=MOST_GPUS)]
_Text = Annotated[str, Meta(max_length=256)]


class SelectorStage(StrEnum):
    """Stage of a training step that has a degree of its own."""

    ROLLOUT = "rollout"
    EXPERIENCE = "experience"
    TRAINING = "training"


class Parallelism(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A degree of parallelism: GPUs that share each layer, GPUs that share the layers, and copies of all of it."""

    tp: _Factor = 1
    pp: _Factor = 1
    dp: _Factor = 1

    @property
    def gpus(self) -> int:
        """GPUs of all copies."""
        return self.tp * self.pp * self.dp

    @property
    def instance_gpus(self) -> int:
        """GPUs of one copy."""
        return self.tp * self.pp

    def __str__(self) -> str:
        """Return it as ``tp4pp2dp2``, without the factors pp and dp that are 1."""
        more = "".join(f"{name}{n}" for name, n in (("pp", self.pp), ("dp", self.dp)) if n != 1)
        return f"tp{self.tp}{more}"


class SelectorSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A selector as the configuration declares it."""

    #: Degrees that it chooses from, the preferred one first: it is in force until something is known.
    degrees: tuple[Parallelism, ...]
    #: ``service:NAME``, whose calls get the degree of the first stage; empty: an outside trainer asks.
    target: str = ""
    #: Stages that it decides about.
    stages: tuple[SelectorStage, ...] = (SelectorStage.ROLLOUT,)
    #: Context lengths and numbers of responses at which profiles are measured, rising.
    contexts: tuple[Tokens, ...] = (1024, 2048, 4096, 8192, 16_384, 32_768)
    responses: tuple[Tokens, ...] = (32, 64, 128)
    #: ``fleet:NAME``, ``llm:POOL`` or ``service:NAME``: their generations and rollouts tell the context, beside those of the target.
    observes: tuple[str, ...] = ()
    #: No response gets longer, in tokens; None: no limit is set.
    context_limit: Tokens | None = None
    #: The longest context of the next step is at most the longest one so far, times this.
    growth: Annotated[float, Meta(ge=1, le=100)] = 1.5
    #: Fraction by which a context is beyond the border of a range before the degree of that range is taken.
    hysteresis: Annotated[float, Meta(ge=0, le=4)] = 0.15
    #: Seconds of a change of the degree, until one was measured.
    switch_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    #: Degree that is always used; a pin or its end, by a verb, holds until this member changes.
    pin: Parallelism | None = None
    #: Identity of the profile; empty members fit any.
    hardware: _Text = ""
    model: _Text = ""
    engine: _Text = ""


class ProfileIdentity(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """What a profile was measured on."""

    hardware: _Text
    model: _Text
    engine: _Text

    def fits(self, spec: SelectorSpec) -> bool:
        """Return whether a selector may use a profile of this identity."""
        return all(
            wanted in ("", mine)
            for wanted, mine in (
                (spec.hardware, self.hardware),
                (spec.model, self.model),
                (spec.engine, self.engine),
            )
        )


class ProfileCell(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What was measured of one degree at one context length and number of responses."""

    parallelism: Parallelism
    context: Tokens
    #: Responses at once, over all copies.
    responses: Tokens
    stage: SelectorStage = SelectorStage.ROLLOUT
    #: None: it ran out of memory.
    tokens_per_gpu_second: float | None = None
    #: Most memory of any GPU; None: not measured.
    peak_memory_bytes: int | None = None
    oom: bool = False
    #: Of the measurement, as an interval of ``tokens_per_gpu_second``; None: it was measured once.
    low: float | None = None
    high: float | None = None

    @property
    def key(self) -> tuple[SelectorStage, Parallelism, int, int]:
        """What a later measurement replaces."""
        return self.stage, self.parallelism, self.context, self.responses


class SwitchCost(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Measured seconds from the last answer on one degree to the first one on another."""

    to: Parallelism
    seconds: float
    #: None: from any other.
    origin: Parallelism | None = None


class ParallelismProfile(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The cells and the costs of switches of one identity."""

    identity: ProfileIdentity
    cells: tuple[ProfileCell, ...] = ()
    switches: tuple[SwitchCost, ...] = ()
    #: How it was found: ``measured …`` or ``modelled …``.
    source: _Text = ""
    #: Counts its changes; set by the scheduler, requests leave it 0.
    revision: int = 0


class StageLoad(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one step of a stage was observed to have, or is expected to have. Contexts are tokens."""

    #: Mean, 95th percentile and longest context of a response; p95 and longest 0: as the mean.
    context: float
    context_p95: float = 0.0
    context_longest: float = 0.0
    #: Responses at once.
    responses: int = 1
    #: Calls that wait when the step ends: work of the next one.
    queue: int = 0
    #: Tokens that the stage works on; 0: those of all responses.
    tokens: float = 0.0

    @property
    def longest(self) -> float:
        """The longest context that is known of."""
        return max(self.context, self.context_p95, self.context_longest)

    @property
    def work_tokens(self) -> float:
        """Expected work of the next stage: as much again, and what waits already."""
        return (self.tokens or self.context * self.responses) + self.context * self.queue


def parse_parallelism(text: str) -> Parallelism:
    """Return the degree that is written as ``tp4``, ``tp4dp2`` or ``tp4pp2dp2``. Raises InvalidRequest."""
    found = _DEGREE.fullmatch(text.strip().lower())
    if found is None:
        raise InvalidRequest(f"{text[:64]!r} is no degree: write tp4, tp4dp2 or tp4pp2dp2")
    tp, pp, dp = (1 if each is None else int(each) for each in found.groups())
    return _checked(Parallelism(tp, pp, dp), "")


def _checked(each: Parallelism, pointer: str) -> Parallelism:
    if min(each.tp, each.pp, each.dp) < 1 or each.gpus > MOST_GPUS:
        raise InvalidRequest(f"tp · pp · dp is 1 to {MOST_GPUS} GPUs", pointer=pointer)
    return each


def check_selector(name: str, spec: SelectorSpec) -> None:
    """Raise InvalidRequest, naming the member, for a selector that cannot decide as declared."""
    if not NAME.fullmatch(name):
        raise InvalidRequest("a name has up to 63 letters, digits, . _ and -", pointer="/name")
    _check_degrees(spec)
    if not spec.stages or len(set(spec.stages)) != len(spec.stages):
        raise InvalidRequest("name at least one stage, each once", pointer="/stages")
    for member in ("contexts", "responses"):
        _check_rising(getattr(spec, member), f"/{member}")
    if spec.target and not service_name(spec.target):
        raise InvalidRequest(
            "give service:NAME, or nothing for an outside trainer", pointer="/target"
        )
    for place, each in enumerate(spec.observes):
        if not each.startswith(_OBSERVED) or each.endswith(":"):
            raise InvalidRequest(
                "give fleet:NAME, llm:POOL or service:NAME", pointer=f"/observes/{place}"
            )
    for member in ("growth", "hysteresis", "switch_seconds"):
        if not math.isfinite(getattr(spec, member)):
            raise InvalidRequest("give a finite number", pointer=f"/{member}")
    if spec.pin is not None and spec.pin not in spec.degrees:
        known = ", ".join(map(str, spec.degrees))
        raise InvalidRequest(f"{spec.pin} is not among its degrees {known}", pointer="/pin")


def _check_degrees(spec: SelectorSpec) -> None:
    if not 1 <= len(spec.degrees) <= MOST_DEGREES:
        raise InvalidRequest(f"give 1 to {MOST_DEGREES} degrees", pointer="/degrees")
    if len(set(spec.degrees)) != len(spec.degrees):
        raise InvalidRequest("give each degree once", pointer="/degrees")
    for place, each in enumerate(spec.degrees):
        _checked(each, f"/degrees/{place}")
    counts = [each.instance_gpus for each in spec.degrees]
    if spec.target and len(set(counts)) != len(counts):
        raise InvalidRequest(
            "degrees of a service differ in tp · pp, the GPUs of an instance: copies are started as calls need them",
            pointer="/degrees",
        )


def _check_rising(lengths: tuple[int, ...], pointer: str) -> None:
    if not 1 <= len(lengths) <= MOST_LENGTHS:
        raise InvalidRequest(f"give 1 to {MOST_LENGTHS} numbers", pointer=pointer)
    if any(low >= high for low, high in pairwise(lengths)):
        raise InvalidRequest("give rising numbers, each once", pointer=pointer)


def check_target(name: str, spec: SelectorSpec, services: dict[str, GpuService]) -> None:
    """Raise InvalidRequest when the service of a selector is not declared, or has not the degrees."""
    target = service_name(spec.target)
    if target is None:
        return
    if target not in services:
        known = ", ".join(sorted(services)) or "none"
        raise InvalidRequest(
            f"Selector {name!r}: there is no service {target!r}; there are: {known}",
            pointer="/target",
        )
    have = {each.gpus for each in services[target].degrees}
    for place, each in enumerate(spec.degrees):
        if each.instance_gpus not in have:
            known = ", ".join(map(str, sorted(have)))
            raise InvalidRequest(
                f"Selector {name!r}: service {target!r} runs on {known} GPUs, {each} takes"
                f" {each.instance_gpus}: add that degree to the service",
                pointer=f"/degrees/{place}",
            )


def check_profile_change(change: ParallelismProfile) -> None:
    """Raise InvalidRequest, naming the member, for cells or costs that are no measurement."""
    for member in ("hardware", "model", "engine"):
        if not getattr(change.identity, member):
            raise InvalidRequest(
                "say what was measured: hardware, model and engine", pointer=f"/identity/{member}"
            )
    if len(change.cells) > MOST_CELLS:
        raise InvalidRequest(f"a profile has up to {MOST_CELLS} cells", pointer="/cells")
    for place, cell in enumerate(change.cells):
        _check_cell(cell, f"/cells/{place}")
    for place, cost in enumerate(change.switches):
        _checked(cost.to, f"/switches/{place}/to")
        if not _is_within(cost.seconds, 0.0, 86_400.0):
            raise InvalidRequest("give seconds, up to a day", pointer=f"/switches/{place}/seconds")
    if len(change.switches) > MOST_DEGREES**2:
        raise InvalidRequest(f"give up to {MOST_DEGREES**2} costs", pointer="/switches")


def _check_cell(cell: ProfileCell, pointer: str) -> None:
    _checked(cell.parallelism, f"{pointer}/parallelism")
    speed = cell.tokens_per_gpu_second
    if cell.oom == (speed is not None):
        raise InvalidRequest(
            "give tokens_per_gpu_second, or oom: true for a cell that ran out of memory",
            pointer=f"{pointer}/tokens_per_gpu_second",
        )
    if speed is not None and not _is_within(speed, 1e-9, 1e12):
        raise InvalidRequest("give a rate above 0", pointer=f"{pointer}/tokens_per_gpu_second")
    for member in ("low", "high"):
        bound = getattr(cell, member)
        if bound is not None and not _is_within(bound, 0.0, 1e12):
            raise InvalidRequest("give a rate, or nothing", pointer=f"{pointer}/{member}")
    if cell.peak_memory_bytes is not None and not 0 <= cell.peak_memory_bytes < 2**53:
        raise InvalidRequest("give bytes of one GPU", pointer=f"{pointer}/peak_memory_bytes")


def check_load(load: StageLoad) -> None:
    """Raise InvalidRequest, naming the member, for a load that no stage has."""
    if not _is_within(load.context, 1.0, float(MOST_TOKENS)):
        raise InvalidRequest("give tokens of a response, at least 1", pointer="/context")
    for member in ("context_p95", "context_longest", "tokens"):
        if not _is_within(getattr(load, member), 0.0, 2.0**60):
            raise InvalidRequest("give tokens, 0 for unknown", pointer=f"/{member}")
    if not 1 <= load.responses <= MOST_TOKENS:
        raise InvalidRequest("give the responses at once, at least 1", pointer="/responses")
    if not 0 <= load.queue <= MOST_TOKENS:
        raise InvalidRequest("give the calls that wait, at least 0", pointer="/queue")


def _is_within(value: float, least: float, most: float) -> bool:
    return math.isfinite(value) and least <= value <= most


def with_change(
    profile: ParallelismProfile | None, change: ParallelismProfile
) -> ParallelismProfile:
    """Return ``profile`` with the cells and costs of ``change`` added or replaced, as its next revision.

    A change that repeats what is there is no revision: a request may arrive twice. Raises InvalidRequest for too many cells.
    """
    if profile is None:
        profile = ParallelismProfile(change.identity, source=change.source)
    cells = {each.key: each for each in (*profile.cells, *change.cells)}
    if len(cells) > MOST_CELLS:
        raise InvalidRequest(f"a profile has up to {MOST_CELLS} cells", pointer="/cells")
    costs = {(each.origin, each.to): each for each in (*profile.switches, *change.switches)}
    following = ParallelismProfile(
        profile.identity,
        tuple(cells[key] for key in sorted(cells)),
        tuple(costs.values()),
        change.source or profile.source,
        profile.revision,
    )
    if following == profile and profile.revision:
        return profile
    return msgspec.structs.replace(following, revision=profile.revision + 1)


def profile_of(
    spec: SelectorSpec, profiles: Iterable[ParallelismProfile]
) -> ParallelismProfile | None:
    """Return the profile that a selector uses, of ``profiles`` in the order of their last changes; None: none fits."""
    fitting = [each for each in profiles if each.identity.fits(spec)]
    return fitting[-1] if fitting else None
