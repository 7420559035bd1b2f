"""The sweeps of ARL-Tangram's headlines: for each printed ratio, two parameters that the paper leaves open.

Sweeps of one workload over the same knobs read different measures of the same simulations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from benchmarks.evaluation.cases import PODS, Inputs, Scale
from benchmarks.evaluation.coding import interaction_act
from benchmarks.evaluation.gpus import RIGHT_BATCH, RIGHT_SERVICES, reward_act
from benchmarks.evaluation.knobs import Knob, Sweep, declared
from benchmarks.evaluation.maps import Axis, RatioMap
from benchmarks.evaluation.plans import Context, act, step, trajectory_act
from benchmarks.evaluation.runs import Results
from benchmarks.evaluation.search import effective_step
from domain.errors import InvalidRequest
from simulator.workloads.mopd import GPUS

_CODING, _MOPD, _SEARCH = (
    "ai-coding(calibrated)", "mopd(calibrated)", "deep-search(calibrated)",
)  # fmt: skip
#: GPUs that ARL-Tangram §6.3 calls 29 % of 40: 11.6 of them, so 12.
FEW_GPUS: Final = 12

_CORES: Final = Knob(Axis("cores", (768, 1280, 1792, 2560, 3840), 768, 3840, 1280), field="nodes")
_BATCH: Final = Knob(Axis("batch", (128, 256, 768, 1280, 1536), 128, 1536, 1280), field="batch")
#: The print names no limit of pods; 110 is the default of Kubernetes, others are chosen by who runs it.
_PODS: Final = Knob(Axis("pods a node", tuple(PODS.values()), 40, 250), field="pods")
_ACTING: Final = declared(
    _CODING, "acting_share", "share of acting", (0.1, 0.2, 0.3, 0.47, 0.7), printed=True
)
_SHARE: Final = declared(
    _CODING, "reward_share", "share of rewards", (0.05, 0.25, 0.5, 0.75, 0.95), printed=False
)
_UNITS: Final = declared(
    _CODING, "reward_units", "cores of the mean reward", (1, 2, 4, 8, 32), printed=False
)
_ARRIVALS: Final = declared(
    _MOPD, "arrival_seconds", "s of arrivals", (120, 180, 260, 400, 600), printed=True
)
_RESTORED: Final = declared(
    _MOPD, "restored_share", "share of calls restored", (0.1, 0.25, 0.5, 0.75, 1.0), printed=False
)
_coding = partial(Sweep, workload=_CODING, batch=1280)
_pods = partial(_coding, rival="kubernetes({pods})", x=_PODS, y=_ACTING)
_rewards = partial(_coding, x=_SHARE, y=_UNITS, measure=trajectory_act)
_mopd = partial(Sweep, workload=_MOPD, measure=act, x=_ARRIVALS)

SWEEPS: Final = (
    _rewards("coding-rewards", "ACT of AI coding at batch 1,280, kubernetes(110) over paper", 4.3,
             rival="kubernetes(110)"),
    _rewards("coding-reward-act", "Rewards of AI coding at batch 1,280, kubernetes(110) over paper", 2.8,
             rival="kubernetes(110)", measure=reward_act),
    _coding("coding-cores", "ACT of AI coding, kubernetes(110) over paper", 4.3,
            rival="kubernetes(110)", measure=trajectory_act, x=_CORES, y=_BATCH),
    _pods("coding-pods", "ACT of AI coding at batch 1,280, kubernetes over paper", 4.3,
          measure=trajectory_act),
    _pods("coding-interactions", "Interactions of AI coding at batch 1,280, kubernetes over paper", 9.0,
          measure=interaction_act),
    _pods("coding-step", "RL step of AI coding at batch 1,280, kubernetes over paper", 1.4, measure=step),
    _pods("coding-small", "ACT of AI coding at batch 128, kubernetes over paper", 3.1, batch=128,
          measure=trajectory_act),
    _pods("coding-overload", "ACT of AI coding at batch 1,536, kubernetes with timeouts over paper", 27.7,
          batch=1536, rival="kubernetes(timeouts, {pods})", measure=trajectory_act),
    _rewards("fixed-4-few", "ACT of AI coding at batch 256, fixed(4) over paper", 2.0, batch=256,
             rival="fixed(4)"),
    _rewards("fixed-16", "ACT of AI coding at batch 1,280, fixed(16) over paper", 3.0, rival="fixed(16)"),
    _rewards("fixed-4", "ACT of AI coding on 1,280 cores, fixed(4) over paper", 1.8, rival="fixed(4)"),
    _mopd(
        "mopd-arrivals", "ACT of MOPD at batch 2,048, sglang(4) over paper", 18.1, batch=2048,
        rival="sglang(4)",
        y=declared(_MOPD, "execution_seconds", "s of a call", (0.05, 0.2, 0.621, 0.705, 2.0, 5.0),
                   printed=True),
    ),
    _mopd(
        "mopd-bursts", "ACT of MOPD at batch 2,048 with bursts, sglang(4) over paper", 18.1, batch=2048,
        rival="sglang(4)",
        x=declared(_MOPD, "peak_ratio", "rate within a burst over the mean", (1, 2, 4, 8, 16),
                   printed=False),
        y=declared(_MOPD, "arrival_seconds", "s of arrivals", (180, 260, 400, 550), printed=True),
    ),
    _mopd("mopd-fewer", "ACT of MOPD at batch 1,024, sglang(4) over paper", 3.4, batch=1024,
          rival="sglang(4)", y=_RESTORED),
    _mopd("mopd-restores", "ACT of MOPD at batch 1,024, serverlessllm over paper", 101.8, batch=1024,
          rival="serverlessllm", y=_RESTORED),
    _mopd(
        "mopd-gpus", f"ACT of ten services at batch 1,024, sglang(4) on {GPUS} GPUs over paper on fewer",
        1.0, batch=RIGHT_BATCH, rival="sglang(4)",
        y=Knob(Axis("GPUs", (8, FEW_GPUS, 16, 24, 40), FEW_GPUS, FEW_GPUS, FEW_GPUS), field="gpus"),
        fields=(("teachers", RIGHT_SERVICES),), rival_fields=(("gpus", GPUS),),
    ),
    Sweep(
        "search-limits", "RL step of DeepSearch, unmanaged over paper, ineffective ones done again",
        1.5, _SEARCH, 2048, "unmanaged", effective_step,
        declared(_SEARCH, "search_limit", "searches at once", (32, 64, 128, 256, 512), printed=False),
        declared(_SEARCH, "token_seconds", "s of a token", (0.005, 0.01, 0.02, 0.035, 0.05),
                 printed=False),
    ),
)  # fmt: skip


def chosen(names: Sequence[str], *, small: bool) -> list[Sweep]:
    """Return these sweeps, all when none is named. Raises InvalidRequest for an unknown name."""
    known = {each.id: each for each in SWEEPS}
    for name in names:
        if name not in known:
            raise InvalidRequest(f"there is no sweep {name!r}; there are {', '.join(known)}")
    wanted = [known[name] for name in names] or list(SWEEPS)
    return [each.smaller() for each in wanted] if small else wanted


def maps(
    sweeps: Iterable[Sweep], inputs: Inputs, scale: Scale, results: Results
) -> dict[str, RatioMap]:
    """Return the map of each sweep, by its id."""
    context = Context(scale, inputs, results)
    return {each.id: each.map(context) for each in sweeps}
