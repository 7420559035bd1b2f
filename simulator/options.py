"""From the options of the command line to what is simulated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from domain.errors import InvalidRequest
from simulator.cluster import GIB, Cluster
from simulator.compare import Scene
from simulator.foreign.reading import recordings_of, requests_of
from simulator.llm_trace import LlmRequest, make_requests
from simulator.traces import make_recordings
from simulator.workloads import calibrated
from simulator.workloads.ai_coding import AiCoding
from simulator.workloads.calibrated import CALIBRATIONS
from simulator.workloads.deep_search import LIMITS, DeepSearch
from simulator.workloads.mopd import GPUS, TEACHERS, Mopd
from simulator.workloads.mopd import teachers as teacher_models
from simulator.workloads.mopd_search import JudgedSearch, MopdSearch, services
from simulator.workloads.recorded import read_journal, recorded
from simulator.workloads.rewards import PRESETS
from simulator.workloads.services import Arrivals, ServiceCalls, models
from tangram_client.traces.recording import Recording

#: Made up when there is no trace: about as many as the traces named in the workloads have.
RECORDINGS: Final = 116
REQUESTS: Final = 12_000
#: Default number of GPUs that services share.
SERVICE_GPUS: Final = 3

#: Options that only some workloads have.
OPTIONS_OF: Final = {
    "ai-coding": (
        "rewards",
        "reward_scale",
        "units",
        "declared_ratio",
        "malleable",
        "length_error",
    ),
    "deep-search": ("search_limit", "pdf_limit", "judge_limit"),
    "mopd": ("gpus", "teachers"),
    "mopd-search": ("search_limit", "pdf_limit", "gpus", "teachers"),
    "recorded": ("limits",),
    "services": ("gpus", "services", "load", "seconds", "call_seconds", "restore_seconds"),
} | dict.fromkeys(CALIBRATIONS, ("values",))
WORKLOADS: Final = tuple(OPTIONS_OF)

_OPTIONS: Final = (
    click.argument("trace", required=False, type=click.Path(path_type=Path)),
    click.option("--workload", type=click.Choice(WORKLOADS), default="ai-coding",
                 show_default=True),
    click.option("--batch", default=128, show_default=True, help="Trajectories of an RL step."),
    click.option("--steps", default=1, show_default=True, help="RL steps."),
    click.option("--group", default=8, show_default=True, help="Trajectories of a prompt."),
    click.option("--nodes", default=15, show_default=True, help="Nodes of the cluster."),
    click.option("--cores", default=256, show_default=True, help="Cores of each node."),
    click.option("--memory-gib", default=2400, show_default=True, help="Memory of each node."),
    click.option("--rewards", type=click.Choice(sorted(PRESETS)), default="medium",
                 show_default=True, help="ai-coding: how long test suites take at the end."),
    click.option("--reward-scale", default=1.0, show_default=True,
                 help="ai-coding: times as long."),
    click.option("--units", default=32, show_default=True,
                 help="ai-coding: most cores of a reward."),
    click.option("--declared-ratio", default=1.0, show_default=True,
                 help="ai-coding: rewards declare a duration so many times the true one."),
    click.option("--length-error", type=click.FloatRange(min=0),
                 help="ai-coding: actions declare how many follow, with this error (a sigma)  [not declared]."),
    click.option("--malleable", is_flag=True, help="ai-coding: running rewards may be resized."),
    *(
        click.option(f"--{api}-limit", default=LIMITS[f"api:{api}"], show_default=True,
                     help=f"Workloads that search: api:{api} at once.")
        for api in ("search", "pdf", "judge")
    ),
    click.option("--gpus", type=int,
                 help="mopd, services: GPUs of all nodes together, eight a node.  "
                      f"[default: {GPUS} and {SERVICE_GPUS}]"),
    click.option("--teachers", default=TEACHERS, show_default=True, help="mopd: teacher models."),
    click.option("--services", default=10, show_default=True, help="services: how many."),
    click.option("--load", default=0.65, show_default=True,
                 help="services: share of GPUs × time that calls alone need."),
    click.option("--seconds", default=120.0, show_default=True, help="services: of arrivals."),
    click.option("--call-seconds", default=0.5, show_default=True, help="services: a call."),
    click.option("--restore-seconds", default=0.77, show_default=True,
                 help="services: bringing one to a chunk."),
    click.option("--set", "values", multiple=True, type=(str, float), metavar="NAME VALUE",
                 help="Calibrated workloads: another value of a declared parameter."),
    click.option("--limit", "limits", multiple=True, type=(str, int), metavar="NAME UNITS",
                 help="recorded: units of a cluster-wide resource."),
    click.option("--failures", default=0.0, show_default=True,
                 help="Share of grants that fail before their start."),
    click.option("--seed", default=0, show_default=True),
    click.option("--json", "as_json", is_flag=True, help="The whole result as JSON."),
    click.option("--quiet", "-q", is_flag=True, help="No progress."),
)  # fmt: skip


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add what every command takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def build(workload: str, *, failures: float, seed: int, **options: Any) -> Scene:
    """Return the scene. Raises InvalidRequest or TraceError saying what is wrong with it."""
    if not 0 <= failures < 1:
        raise InvalidRequest(f"--failures lies in [0, 1), not at {failures!r}")
    options["cluster"] = Cluster(options["nodes"], options["cores"], options["memory_gib"] * GIB)
    scene = _MAKE[workload](seed=seed, **options)
    return replace(scene, failure_ratio=failures, seed=seed)


def _coding(
    *, trace: Path | None, batch: int, steps: int, group: int, cluster: Cluster, rewards: str,
    reward_scale: float, units: int, declared_ratio: float, malleable: bool, seed: int,
    length_error: float | None = None, **_: Any,
) -> Scene:  # fmt: skip
    recordings, assumed = known_recordings(trace, seed)
    chosen = replace(
        PRESETS[rewards], scale=reward_scale, most_units=units, declared_ratio=declared_ratio,
        malleable=malleable,
    )  # fmt: skip
    workload = AiCoding(recordings, batch, steps, chosen, seed, group, length_error=length_error)
    return Scene(workload, cluster, assumed=assumed)


def _search(
    *, trace: Path | None, batch: int, steps: int, group: int, cluster: Cluster,
    search_limit: int, pdf_limit: int, judge_limit: int, seed: int, **_: Any,
) -> Scene:  # fmt: skip
    limits = {"api:search": search_limit, "api:pdf": pdf_limit, "api:judge": judge_limit}
    requests, assumed = known_requests(trace, seed)
    search = DeepSearch(requests, batch, steps, seed, group)
    return Scene(search, replace(cluster, apis=limits), assumed=assumed)


def _mopd(
    *, trace: Path | None, batch: int, steps: int, group: int, cluster: Cluster, gpus: int | None,
    teachers: int, seed: int, **_: Any,
) -> Scene:  # fmt: skip
    requests, assumed = known_requests(trace, seed)
    mopd = Mopd(requests, batch, steps, seed, group, domains=teachers)
    served = replace(cluster, gpus=gpus or GPUS, models=teacher_models(teachers))
    return Scene(mopd, served, assumed=assumed)


def _mopd_search(
    *, trace: Path | None, batch: int, steps: int, group: int, cluster: Cluster, gpus: int | None,
    teachers: int, search_limit: int, pdf_limit: int, seed: int, **_: Any,
) -> Scene:  # fmt: skip
    requests, assumed = known_requests(trace, seed)
    both = MopdSearch(
        Mopd(requests, batch, steps, seed, group, domains=teachers),
        JudgedSearch(requests, batch, steps, seed, group),
    )
    limits = {"api:search": search_limit, "api:pdf": pdf_limit}
    served = replace(cluster, apis=limits, gpus=gpus or GPUS, models=services(teachers))
    return Scene(both, served, assumed=assumed)


def known_recordings(trace: Path | None, seed: int) -> tuple[list[Recording], tuple[str, ...]]:
    """Return the recordings of a trace of any format, or made up ones, and what was assumed."""
    return (make_recordings(RECORDINGS, seed), ()) if trace is None else recordings_of(trace)


def known_requests(trace: Path | None, seed: int) -> tuple[list[LlmRequest], tuple[str, ...]]:
    """Return the requests of a trace of any format, or made up ones, and what was assumed."""
    return (make_requests(REQUESTS, seed), ()) if trace is None else requests_of(trace)


def _recorded(
    *, trace: Path | None, cluster: Cluster, limits: tuple[tuple[str, int], ...], **_: Any
) -> Scene:
    if trace is None:
        raise InvalidRequest("recorded: give the journal to play again as TRACE")
    workload, known = recorded(read_journal(trace)), dict(limits)
    for name in sorted(workload.resources() - {"cpu", *known}):
        raise InvalidRequest(f"recorded: the journal uses {name}; give --limit {name} UNITS")
    return Scene(workload, replace(cluster, apis=known))


def _services(
    *, trace: Path | None, cluster: Cluster, gpus: int | None, services: int, load: float, seconds: float,
    call_seconds: float, restore_seconds: float, seed: int, **_: Any,
) -> Scene:  # fmt: skip
    if not 0 <= restore_seconds < math.inf:
        raise InvalidRequest(
            f"services: restore_seconds must be a number ≥ 0, not {restore_seconds!r}"
        )
    requests, assumed = known_requests(trace, seed)
    gpus = gpus or SERVICE_GPUS
    names = tuple(f"model-{number}" for number in range(services))
    arrivals = Arrivals(requests, names, gpus, load, seconds, call_seconds, seed=seed)
    served = models(names, restore_seconds, cluster.gpu_memory_bytes)
    return Scene(
        ServiceCalls(arrivals.all(), call_seconds), replace(cluster, gpus=gpus, models=served),
        assumed=assumed,
    )  # fmt: skip


def _calibrated(
    workload: str, *, trace: Path | None, batch: int, steps: int, group: int, cluster: Cluster,
    values: tuple[tuple[str, float], ...], seed: int, **_: Any,
) -> Scene:  # fmt: skip
    """Return a calibrated workload on the cluster, with the GPUs and limits that it declares."""
    given = dict(values)
    for name in given.keys() & {"batch", "steps"}:
        raise InvalidRequest(f"{workload}: {name} is chosen by --{name}")
    declared = CALIBRATIONS[workload].with_values(given)
    size = calibrated.Size(batch, steps, seed, group)
    if workload.startswith("ai-coding"):
        recordings, assumed = known_recordings(trace, seed)
        coding = calibrated.ai_coding(recordings, size, declared)
        return Scene(coding, cluster, calibrated.overheads(declared), assumed=assumed)
    requests, assumed = known_requests(trace, seed)
    if workload.startswith("deep-search"):
        search = calibrated.deep_search(requests, size, declared)
        limited = replace(cluster, apis=calibrated.limits(declared))
        return Scene(search, limited, calibrated.overheads(declared), assumed=assumed)
    mopd = calibrated.mopd(requests, size, declared)
    gpus, models = round(declared["gpus"]), calibrated.models(declared)
    on_gpus = replace(cluster, gpus=gpus, models=models)
    return Scene(mopd, on_gpus, calibrated.overheads(declared), assumed=assumed)


_MAKE: Final[dict[str, Callable[..., Scene]]] = {
    "ai-coding": _coding,
    "deep-search": _search,
    "mopd": _mopd,
    "mopd-search": _mopd_search,
    "recorded": _recorded,
    "services": _services,
    **{name: partial(_calibrated, name) for name in CALIBRATIONS},
}


def foreign(workload: str, given: set[str]) -> str | None:
    """Return the first of the ``given`` options that only other workloads have, if any."""
    own = OPTIONS_OF[workload]
    others = [option for options in OPTIONS_OF.values() for option in options]
    return next((option for option in others if option in given and option not in own), None)
