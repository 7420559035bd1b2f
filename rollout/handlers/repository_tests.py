"""Tests of a repository: the action that runs them on as many cores as are free, and the reward that they mean.

| tests said | reward |
|---|---|
| all named tests passed | 1; with the option ``partial`` the share that passed |
| some failed or were skipped | 0; with ``partial`` the share |
| some did not run, and without the patch they can be run | the same: the patch kept them from running |
| some did not run, without the patch neither | none: the instance is bad, the rollout fails, and its reason names the test |
| some did not run, without the patch the tests take too long as well | none, with the reason: `test_seconds` is too short |
| none: the action timed out or ran out of memory | 0 where the tests run without the patch, else none, with the reason |
| none: the action was cancelled, or the node has no evidence | none, with the reason (I2) |

Rules
1. The tests of EVAL run in a fork of the prepared environment, where no program of the agent has ever run. Its patch is all that is there
   of it.
2. The action is elastic and malleable: files of tests are spread over as many processes as cores are granted.
3. Tests without a result are judged by a second run without the patch, so a patch that breaks the loading of tests is no
   way around a reward of 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from domain.rewards import RewardRule
from rollout.handlers.base import Job
from rollout.handlers.commands import COMPLETED, exit_code, failure_of, output_of
from rollout.handlers.programs import source
from rollout.handlers.repository import place_tests, reset_repository
from rollout.handlers.request_members import refused
from rollout.handlers.swe_instances import SweInstance, SweOptions, all_ids
from rollout.ports import ActionEnd

#: In the workspace, while the command of the reward runs.
_PROGRAM: Final = ".rollout/score_tests.py"
_OUTPUT_BYTES: Final = 512 * 1024
#: Of the action beyond the limit of its tests.
_MARGIN_SECONDS: Final = 120.0
#: Cannot be executed, and not found.
_NO_PROGRAM: Final = (126, 127)
_MISSING: Final = "missing"
#: Ends that a patch can bring about as well as a node.
_MAY_BE_THE_PATCH: Final = ("timeout", "oom_killed")
_SHOWN: Final = 3


class SuiteScore(msgspec.Struct, frozen=True):
    """What the program of the score says."""

    score: float | None = None
    share: float = 0.0
    count: int = 0
    passed: int = 0
    #: Tests that did not pass → how.
    tests: dict[str, str] = {}
    unloaded: list[str] = []
    #: Tests took too long.
    late: bool = False
    output: str = ""
    error: str = ""
    member: str = ""


class PatchVerdict(NamedTuple):
    """The reward of a patch, or the reason why there is none."""

    reward: float | None
    reason: str
    #: What the tests said.
    report: Mapping[str, Any] = {}


async def judge(job: Job, instance: SweInstance, options: SweOptions, base: str) -> PatchVerdict:
    """Run the tests on the patch that is applied, and return the reward. Raises InvalidRequest for a bad instance."""
    mounted = await place_tests(job, instance)
    if instance.test_command:
        return await _judged_by_command(job, instance, options, base, mounted)
    members = _pytest_action(instance, options, mounted)
    end = await job.execute(members, name="score")
    if end.outcome in _MAY_BE_THE_PATCH:
        return await _judged_by_base(job, instance, options, base, end, None)
    if end.outcome != COMPLETED:
        return _no_verdict(end)
    score = _read(end)
    if score is not None and score.error:
        raise refused("instance", score.member, score.error)
    if score is not None and score.score is not None:
        if end.reward is None:  # the node has no evidence for what the program said
            return PatchVerdict(None, end.detail or "the node reports no reward")
        return _verdict(score, end.reward)
    if exit_code(end) in _NO_PROGRAM:
        raise refused("instance", "python", f"{instance.python!r}: {failure_of(end)}")
    return await _judged_by_base(job, instance, options, base, end, score)


async def _judged_by_base(
    job: Job,
    instance: SweInstance,
    options: SweOptions,
    base: str,
    ended: ActionEnd,
    score: SuiteScore | None,
) -> PatchVerdict:
    """Judge a patch with which tests did not run: run them without it. Raises InvalidRequest."""
    await reset_repository(job, instance, base)
    mounted = await place_tests(job, instance, again=True)
    end = await job.execute(_pytest_action(instance, options, mounted), name="score-base")
    without = _read(end)
    if without is None or without.error:
        if ended.outcome != COMPLETED:
            return _no_verdict(ended)
        problem = f"{instance.python} runs no tests, also without the patch: {failure_of(end)}"
        raise refused("instance", "python", problem)
    missing = (
        None if score is None else {t for t, state in score.tests.items() if state == _MISSING}
    )
    for member, number, test in all_ids(instance):
        concerned = missing is None or test in missing
        if not concerned or without.tests.get(test) != _MISSING:
            continue
        # A test of the fix may import what only the fix has.
        if member == "PASS_TO_PASS" or test.partition("::")[0] not in without.unloaded:
            if without.late:
                why = f"{test} took too long, also without the patch"
                return PatchVerdict(
                    None, f"{why}: give more than {options.test_seconds:g} test_seconds"
                )
            problem = f"{test}: there is no such test, also without the patch"
            raise refused("instance", f"{member}[{number}]", problem)
    if score is None:
        how = failure_of(ended).removeprefix("it ")
        return PatchVerdict(0.0, f"the tests gave no result ({how}); without the patch they do")
    share = score.share if options.partial else 0.0
    return _verdict(score, share)


async def _judged_by_command(
    job: Job, instance: SweInstance, options: SweOptions, base: str, mounted: Mapping[str, str]
) -> PatchVerdict:
    """Judge by the command and the rule of the instance. Raises InvalidRequest."""
    assert instance.reward is not None
    rule = msgspec.structs.replace(instance.reward, files={**instance.reward.files, **mounted})
    members = _action(instance, options, list(instance.test_command), rule)
    members["exec"] |= {"cwd": instance.directory, "env": dict(instance.variables)}
    end = await job.execute(members, name="score")
    if end.outcome not in (COMPLETED, *_MAY_BE_THE_PATCH):
        return _no_verdict(end)
    if end.reward is None:
        await reset_repository(job, instance, base)
        await place_tests(job, instance, again=True)
        without = await job.execute(members, name="score-base")
        if without.reward is None and end.outcome != COMPLETED:
            return _no_verdict(end)
        if without.reward is None:
            problem = (
                f"gives no reward, also without the patch: {without.detail}; {failure_of(without)}"
            )
            raise refused("instance", "test_command", problem)
        why = end.detail or failure_of(end)
        return PatchVerdict(0.0, f"{why}; without the patch there is a result", {"detail": why})
    reward = end.reward if options.partial else float(end.reward >= 1.0)
    return PatchVerdict(reward, f"the tests gave {end.reward:g}", {"value": end.reward})


def _pytest_action(
    instance: SweInstance, options: SweOptions, mounted: Mapping[str, str]
) -> dict[str, Any]:
    order = {
        "directory": instance.directory,
        "python": instance.python,
        "expected": [(f"{member}[{number}]", test) for member, number, test in all_ids(instance)],
        "options": instance.pytest_options,
        "variables": instance.variables,
        "seconds": options.test_seconds,
        "partial": options.partial,
    }
    files = {_PROGRAM: source("score_tests"), **mounted}
    rule = RewardRule(source="json", path="score", files=files)
    most = len(instance.test_paths)
    members = _action(instance, options, [instance.python, "-I", _PROGRAM, "{units}"], rule, most)
    members["exec"]["stdin"] = msgspec.json.encode(order).decode()
    return members


def _action(
    instance: SweInstance,
    options: SweOptions,
    words: list[str],
    rule: RewardRule,
    most_cores: int | None = None,
) -> dict[str, Any]:
    """Return the members of an elastic action with a reward."""
    cores = sorted(
        {each for each in options.test_cores if most_cores is None or each <= most_cores}
    )
    return {
        "kind": "exec",
        "family": "test",
        "cost": {"cpu": cores or [1]},
        "key": "cpu",
        "malleable": True,
        # The tests of each process may share one core, and use a quarter of it.
        "timeout_seconds": 4 * (cores or [1])[-1] * options.test_seconds + _MARGIN_SECONDS,
        "exec": {"command": words, "output": {"limit_bytes": _OUTPUT_BYTES, "keep": "tail"}},
        "reward": msgspec.to_builtins(rule),
    }


def _read(end: ActionEnd) -> SuiteScore | None:
    """Return the last line of output; None: it is no score."""
    lines = output_of(end).splitlines()
    try:
        return msgspec.json.decode(lines[-1], type=SuiteScore) if lines else None
    except msgspec.MsgspecError:
        return None


def _no_verdict(end: ActionEnd) -> PatchVerdict:
    return PatchVerdict(None, f"the tests: {failure_of(end)}")


def _verdict(score: SuiteScore, reward: float) -> PatchVerdict:
    reason = f"{score.passed} of {score.count} tests passed"
    if score.tests:
        listed = [f"{test} {state}" for test, state in score.tests.items()][:_SHOWN]
        reason += f": {', '.join(listed)}{', …' if len(score.tests) > _SHOWN else ''}"
    return PatchVerdict(reward, reason, msgspec.to_builtins(score))
