"""A job of ProRL's door once it is accepted: its end, its turns and its patch.

Rules
1. A part of Tangram that does not answer is asked again, `MOST_FAILURES` times: the job goes on meanwhile.
2. A job whose tokens are deleted is an error of its own (410). Without messages, it would read as one that had no turn.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from contract.rollout_views import RolloutView
from domain.errors import CapacityError, NotFound
from facades.prorl.answers import Turns, turns_of
from scheduler.runtime.gateway.http import HttpError
from scheduler.runtime.gateway.native_rollouts import NativeRollouts

#: Longest wait of one look at a job.
WAIT_SECONDS: Final = 60.0
#: Looks at a job that fail one after the other before its client is answered.
MOST_FAILURES: Final = 60
#: Names under which handlers store the patch of a rollout, as artefact or in what RUN returned.
PATCHES: Final = ("git_patch", "patch", "patch.diff")


async def finished(rollouts: NativeRollouts, rollout: str) -> RolloutView:
    """Return a job once it is finished; a part of Tangram that does not answer is asked again."""
    failures = 0
    while True:
        try:
            view = await rollouts.get(rollout, WAIT_SECONDS)
        except CapacityError as error:
            failures += 1
            if failures > MOST_FAILURES:
                raise
            await asyncio.sleep(error.retry_after_seconds)
            continue
        failures = 0
        if view.outcome is not None:
            return view


async def turns_of_job(rollouts: NativeRollouts, view: RolloutView) -> Turns:
    """Return the turns of a finished job. Raises HttpError 410 when they are deleted."""
    try:
        return turns_of(await rollouts.turns(view.id))
    except NotFound:
        if view.turns:
            said = f"the tokens of {view.id} are deleted: run its instance again as a new job"
            raise HttpError(410, "tokens_deleted", said) from None
        return Turns()  # it ended before its log


async def patch_of(rollouts: NativeRollouts, view: RolloutView, turns: Turns) -> str | None:
    """Return the patch of a job; None without one."""
    stored = {artefact.name for artefact in view.artefacts}
    for name in PATCHES:
        if name in stored:
            with suppress(NotFound):
                return (await rollouts.artefact(view.id, name)).decode(errors="replace")
        if isinstance(text := turns.value.get(name), str):
            return text
    return None
