"""Calibrated workloads: the recorded ones with their means moved to what ARL-Tangram prints.

`calibration` declares the parameters. Here they become an `AiCoding`, a `Mopd` or a `DeepSearch`: shapes stay
as recorded (number of turns, kinds of commands, spread of durations, tokens, bursts), means are those declared.
A function takes recordings and declared parameters alone, so results cannot enter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from domain.elasticity import Elasticity
from domain.errors import InvalidRequest
from domain.resources import MILLI
from simulator.gpus import GpuModel
from simulator.llm_trace import LlmRequest
from simulator.overheads import Overheads
from simulator.work import ActionWork
from simulator.workloads import calibration
from simulator.workloads.ai_coding import AiCoding
from simulator.workloads.calibration import Calibration
from simulator.workloads.deep_search import DeepSearch
from simulator.workloads.mix_from_ratios import mix_from_ratios
from simulator.workloads.mopd import ELASTICITY, Mopd, call_seconds, teachers
from simulator.workloads.rewards import Rewards
from tangram_client.traces.recording import Recording

#: Workload → its declared parameters.
CALIBRATIONS: Final[dict[str, Calibration]] = {
    each.workload: each
    for each in (calibration.CODING, mix_from_ratios(), calibration.MOPD, calibration.SEARCH)
}


@dataclass(frozen=True)
class Size:
    """What of a workload is chosen where it is run, not calibrated."""

    batch: int
    rl_steps: int
    seed: int = 0
    group_size: int = 8


def ai_coding(recordings: Sequence[Recording], size: Size, declared: Calibration) -> AiCoding:
    """Return AI coding with the declared means.

    Over the recordings, ``execution_seconds`` is the mean of all executions, ``reward_share`` the share of
    rewards in them, and ``acting_share`` the share of executions in the time of a trajectory.
    """
    if not recordings:
        raise InvalidRequest(f"{declared.workload}: there is no recorded trajectory to resample")
    turns = fmean(len(each.steps) for each in recordings)
    acting = declared["execution_seconds"] * (turns + 1)
    thinking = acting * (1 / _share(declared, "acting_share") - 1)
    rewards = acting * _share(declared, "reward_share")
    workload = AiCoding(
        recordings, size.batch, size.rl_steps, _rewards(rewards, declared), size.seed,
        size.group_size, think_growth=declared["growth"],
    )  # fmt: skip
    # Copies vary by a factor whose mean is above 1.
    jitter = math.exp(workload.jitter_sigma**2 / 2)
    return replace(
        workload,
        recordings=_scaled(recordings, thinking / jitter, (acting - rewards) / jitter),
    )


def _scaled(
    recordings: Sequence[Recording], thinking: float, interacting: float
) -> list[Recording]:
    """Return recordings that think and interact so many seconds on average, each as it is to others."""
    thought = fmean(sum(step.think_seconds for step in each.steps) for each in recordings)
    acted = fmean(sum(step.duration_seconds for step in each.steps) for each in recordings)
    if not (thought > 0 and acted > 0):
        raise InvalidRequest("recordings without any time of thinking or acting cannot be scaled")
    return [
        replace(
            each,
            steps=tuple(
                replace(
                    step,
                    think_seconds=step.think_seconds * thinking / thought,
                    duration_seconds=step.duration_seconds * interacting / acted,
                )
                for step in each.steps
            ),
        )
        for each in recordings
    ]


def _rewards(executed_seconds: float, declared: Calibration) -> Rewards:
    """Return rewards whose mean is ``executed_seconds`` on the declared number of cores."""
    elasticity = Elasticity(amdahl=min(1.0, declared["parallel_share"]))
    faster = ActionWork(1.0, elasticity).rate(round(declared["reward_units"] * MILLI))
    rewards = Rewards(
        sigma=declared["reward_sigma"], parallel_share=declared["parallel_share"], malleable=True
    )
    spread = math.exp((rewards.sigma**2 + rewards.member_sigma**2) / 2)
    return replace(rewards, median_seconds=executed_seconds * faster / spread)


def mopd(requests: Sequence[LlmRequest], size: Size, declared: Calibration) -> Mopd:
    """Return MOPD whose mean call takes ``execution_seconds`` on ``call_gpus`` GPUs."""
    if not requests:
        raise InvalidRequest(f"{declared.workload}: there is no recorded request to draw from")
    mean = fmean(call_seconds(each.input_tokens + each.output_tokens) for each in requests)
    one = declared["execution_seconds"] * _faster(declared)
    return Mopd(
        requests, size.batch, size.rl_steps, size.seed, size.group_size,
        domains=round(declared["teachers"]), rollout_seconds=declared["arrival_seconds"],
        call_scale=one / mean, growth=declared["growth"], peak_ratio=declared["peak_ratio"],
    )  # fmt: skip


def models(declared: Calibration, count: int | None = None) -> dict[str, GpuModel]:
    """Return the teachers, ``count`` of them: restores take what Table 1 leaves after the hops.

    A restore on ``call_gpus`` GPUs takes ``(overhead_seconds - hop_seconds) / restored_share``; on other counts
    it is to that as the copies of the weights are.
    """
    wished = (declared["overhead_seconds"] - declared["hop_seconds"]) / _share(
        declared, "restored_share"
    )
    if wished <= 0:
        raise InvalidRequest(f"{declared.workload}: overhead_seconds must be above hop_seconds")
    gpus = round(declared["call_gpus"])
    return {
        name: replace(
            model,
            wake_seconds=model.wake_seconds * wished / model.restore_seconds(gpus),
            copy_bytes_per_second=model.copy_bytes_per_second
            * model.restore_seconds(gpus)
            / wished,
        )
        for name, model in teachers(count or round(declared["teachers"])).items()
    }


def _faster(declared: Calibration) -> float:
    milli = round(declared["call_gpus"]) * MILLI
    return ActionWork(1.0, ELASTICITY, key="gpu").rate(milli)


def deep_search(requests: Sequence[LlmRequest], size: Size, declared: Calibration) -> DeepSearch:
    """Return DeepSearch with the declared turns and pace of tokens."""
    return DeepSearch(
        requests, size.batch, size.rl_steps, size.seed, size.group_size,
        median_turns=declared["turns"], token_seconds=declared["token_seconds"],
        think_growth=declared["growth"],
    )  # fmt: skip


def limits(declared: Calibration) -> dict[str, int]:
    """Return the limits of APIs that DeepSearch has."""
    return {f"api:{api}": round(declared[f"{api}_limit"]) for api in ("search", "pdf", "judge")}


def overheads(declared: Calibration) -> Overheads:
    """Return hops of an action that add up to ``hop_seconds``, as the ones of the default do to theirs."""
    hops = Overheads()
    ratio = declared["hop_seconds"] / (hops.start_seconds + hops.report_seconds)
    return replace(
        hops,
        start_seconds=hops.start_seconds * ratio,
        report_seconds=hops.report_seconds * ratio,
    )


def _share(declared: Calibration, name: str) -> float:
    """Return a declared share. Raises InvalidRequest where it is not above 0 and at most 1."""
    share = declared[name]
    if not 0 < share <= 1:
        raise InvalidRequest(f"{declared.workload}: {name} lies in (0, 1], not at {share!r}")
    return share
