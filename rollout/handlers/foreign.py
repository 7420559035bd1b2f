"""Handler ``foreign``: an agent that is not ours, as one command in RUN's environment, with the rollout's model behind OpenAI's protocol.

| option | |
|---|---|
| ``setup`` | actions of INIT, members of ``POST /actions`` each |
| ``agent`` | the action of RUN whose command is the agent; it gets ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` |
| ``access`` | ``relay`` (default), or ``gateway`` with ``base_url``: where the environment reaches Tangram's web process |
| ``max_calls`` | most calls of the agent (1000) |
| ``keep`` | files of RUN that EVAL gets at the same paths, and that are stored as artefacts |
| ``evaluation`` | the action of EVAL; its ``reward`` says where the reward is read from (default: the exit code) |

Rules
1. Every call of the agent is sampled token in, token out, under RUN's seat, and stored as a turn before it is answered; the turns
   are merged by prefix (`rollout.tokens.foreign_calls`).
2. The agent reaches its model by a relay in its environment (`model_relay`, which needs ``python3`` there): the handler connects
   to it from outside. So ``network: none`` stays none. An environment whose network reaches the web process may use
   ``access: gateway``.
3. After a crash of worker or handler process the agent runs on; its calls wait for the handler that continues.
4. A call that no backend answers, or that no weights within ``max_version_span`` may answer, ends RUN with that error: an agent
   that goes on without its model would be trained on.
5. The agent's exit status is data (``detail.agent``): EVAL judges what it left. So are its time-out and its want of memory. An agent
   that never ran (its relay left no mark, or its action ended otherwise) is none: RUN ends `infra_failed`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from domain.action import Outcome
from domain.errors import InvalidRequest, NotFound, Unavailable
from domain.rollouts import Stage
from rollout.handlers.base import AgentHandler
from rollout.handlers.model_access import accepted_at, models_of_process
from rollout.handlers.relayed_calls import CALLS_AT_ONCE, CONTROL_PORT, PORT, RELAY, RelayedCalls
from rollout.job import CallRefused, Job
from rollout.llm.model_calls import ForeignChat, chunks_of
from rollout.llm.sampler import NoBackendAnswers, VersionSpanExceeded
from rollout.llm.sampling_options import ContextOverflow
from rollout.ports import ActionEnd

#: Calls of an agent, unless ``max_calls`` says otherwise.
MAX_CALLS: Final = 1000
#: Code of OpenAI's API, by which agents condense their conversation.
TOO_LONG: Final = "context_length_exceeded"
_COST: Final = {"cpu": 1}
#: File with the token of the agent's trajectory, until the agent starts.
TOKEN: Final = "/tmp/tangram-agent-token"
#: Starts the command of its arguments with the token in the file ``$0``.
_WITH_TOKEN: Final = (
    'OPENAI_API_KEY=$(cat "$0") || exit 127; rm -f "$0"; export OPENAI_API_KEY; exec "$@"'
)
#: Outcomes of an agent that ran.
_RAN: Final = frozenset({Outcome.COMPLETED, Outcome.TIMEOUT, Outcome.OOM_KILLED})
_ENDING: Final = (NoBackendAnswers, VersionSpanExceeded)


class AgentQuestions:
    """Answers the calls of one rollout's agent, by whichever way they arrive."""

    def __init__(self, chat: ForeignChat, created: int = 0, most: int = MAX_CALLS) -> None:
        """``created``: the time that answers name, in seconds since the epoch."""
        self._chat = chat
        self._created = created
        self._most = most
        self._places = asyncio.Semaphore(CALLS_AT_ONCE)
        #: Gets the error that ends RUN.
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def answer(self, method: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return a completion, or its chunks where the agent asks for a stream. Raises InvalidRequest, CapacityError."""
        if method != "chat":
            raise NotFound(f"an agent asks for chat completions, not for {method}")
        body = asked["body"]
        if self._chat.turns >= self._most:
            raise InvalidRequest(f"the agent has made its {self._most} calls", code="max_calls")
        try:
            async with self._places:
                found = await self._chat.complete(
                    body,
                    str(asked.get("request", ""))[:128],
                    repeated=asked.get("repeated") is True,
                )
        except ContextOverflow as error:
            raise InvalidRequest(str(error), pointer="/messages", code=TOO_LONG) from None
        except _ENDING as error:
            if not self.failed.done():
                self.failed.set_exception(error)
            raise
        created = {"created": self._created}
        if body.get("stream"):
            return {"chunks": [{**chunk, **created} for chunk in chunks_of(found)]}
        return {"completion": {**found, **created}}


class ForeignHandler(AgentHandler):
    """Runs an agent of others."""

    async def init(self, job: Job) -> Mapping[str, Any] | None:
        """Do the actions of ``setup``; one that fails ends the rollout."""
        for members in _actions(job, "setup"):
            end = await job.execute(members)
            if _exit_code(end) != 0:
                raise AgentSetupFailed(_why(end))
        return None

    async def run(self, job: Job) -> Mapping[str, Any] | None:
        """Run the agent to its end, and answer its calls meanwhile."""
        members = _one_action(job, "agent")
        chat = ForeignChat(await models_of_process().caller(job))
        created = int(accepted_at(job.rollout.id).timestamp())
        questions = AgentQuestions(chat, created, _max_calls(job))
        job.serve(questions.answer)
        if job.request.options.get("access", "relay") == "gateway":
            running, relay = _execute(job, await _with_gateway(job, members)), None
            relaying = None
        else:
            await job.put(RELAY, Path(__file__).with_name("model_relay.py").read_bytes())
            running = _execute(job, _with_relay(job, members))
            relay = RelayedCalls(job, questions.answer)
            relaying = asyncio.ensure_future(relay.run())
        try:
            ends: set[asyncio.Future[Any]] = {running, questions.failed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if questions.failed.done():
                questions.failed.result()
            end = running.result()
        finally:
            for task in (running, relaying):
                if task is not None:
                    task.cancel()
        has_run = end.outcome in _RAN and (relay is None or chat.turns or await relay.has_served())
        if not has_run:
            raise AgentNotRun(f"the agent never ran: {_why(end)}")
        for path in _kept(job):
            with suppress(CallRefused):  # the agent did not leave it: EVAL judges without it
                await job.artefact(path, await job.get(path))
        return {"outcome": end.outcome, "exit_code": _exit_code(end), "detail": end.detail}

    async def eval(self, job: Job) -> Any:
        """Return the reward of the action ``evaluation``."""
        if "evaluation" not in job.request.options:
            return {"reward": None, "reason": "the option evaluation names no action"}
        kept = {
            record.header["name"]: record.arrays["content"]
            for record in job.history
            if record.kind == "artefact"
        }
        for path in _kept(job):
            if path in kept:
                await job.put(path, kept[path])
        members = {"reward": {"from": "exit_code"}, **_one_action(job, "evaluation")}
        end = await job.execute(members)
        return {"reward": end.reward, "reason": "" if end.reward is not None else _why(end)}

    def final_result(self, job: Job) -> Mapping[str, Any] | None:
        """Add how the agent ended."""
        return {"agent": dict(job.value(Stage.RUN))}


class AgentSetupFailed(Exception):
    """An action of ``setup`` failed."""


class AgentNotRun(Unavailable):
    """The agent's action ended without the agent."""


def _execute(job: Job, members: Mapping[str, Any]) -> asyncio.Future[ActionEnd]:
    return asyncio.ensure_future(job.execute(members, name="agent"))


def _with_relay(job: Job, members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the agent's action with the relay around its command."""
    # -I: what is beside it in the environment is none of its modules.
    command = [
        "python3",
        "-I",
        RELAY,
        str(PORT),
        str(CONTROL_PORT),
        "--",
        *members["exec"]["command"],
    ]
    base = f"http://127.0.0.1:{PORT}/api/v1/trajectories/{job.rollout.id}/v1"
    return _with_variables(
        {**members, "exec": {**members["exec"], "command": command}}, base, "relay"
    )


async def _with_gateway(job: Job, members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the agent's action with the address of the web process, and put the token of its trajectory into a file.

    Members of an action are stored in the log and the journal: the token is none of them.
    """
    address = job.request.options.get("base_url")
    if not isinstance(address, str) or not address:
        raise InvalidRequest(
            "access gateway needs the address of the web process, as the environment reaches it",
            pointer="/options/base_url",
        )
    access = await job.agent_access()
    base = f"{address.rstrip('/')}/api/v1/trajectories/{access['trajectory']}/v1"
    begun = _begun(job)
    if (
        begun is not None
        and (begun["exec"].get("env") or {}).get("OPENAI_API_KEY") == access["token"]
    ):
        return _with_variables(members, base, access["token"])  # by an earlier version
    if begun is None:
        await job.put(TOKEN, access["token"].encode())
    command = ["sh", "-c", _WITH_TOKEN, TOKEN, *members["exec"]["command"]]
    return _with_variables({**members, "exec": {**members["exec"], "command": command}}, base)


def _begun(job: Job) -> Mapping[str, Any] | None:
    """Return the agent's action that the log has; None: it is new."""
    for record in job.history:
        if record.kind == "call" and record.header["key"].endswith(f"/{Stage.RUN.value}/agent"):
            members: Mapping[str, Any] = record.header["members"]
            return members
    return None


def _with_variables(
    members: Mapping[str, Any], base: str, token: str | None = None
) -> dict[str, Any]:
    given = members["exec"].get("env") or {}
    own = {"OPENAI_BASE_URL": base, "OPENAI_API_BASE": base}
    if token is not None:
        own["OPENAI_API_KEY"] = token
    return {**members, "exec": {**members["exec"], "env": {**given, **own}}}


def _actions(job: Job, option: str) -> Sequence[dict[str, Any]]:
    found = job.request.options.get(option) or []
    if not isinstance(found, list):
        raise InvalidRequest(f"{option} is a list of actions", pointer=f"/options/{option}")
    return [_checked(each, option) for each in found]


def _one_action(job: Job, option: str) -> dict[str, Any]:
    if option not in job.request.options:
        raise InvalidRequest(f"name the action {option}", pointer=f"/options/{option}")
    return _checked(job.request.options[option], option)


def _checked(members: Any, option: str) -> dict[str, Any]:
    command = members.get("exec") if isinstance(members, dict) else None
    if not isinstance(command, dict) or not isinstance(command.get("command"), list):
        raise InvalidRequest(
            f"{option} is an action with exec.command, as in POST /actions",
            pointer=f"/options/{option}",
        )
    return {"kind": "exec", "cost": _COST, **members}


def _max_calls(job: Job) -> int:
    found = job.request.options.get("max_calls", MAX_CALLS)
    if not isinstance(found, int) or found < 1:
        raise InvalidRequest("max_calls is an integer of at least 1", pointer="/options/max_calls")
    return found


def _kept(job: Job) -> Sequence[str]:
    found = job.request.options.get("keep") or []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidRequest("keep is a list of paths", pointer="/options/keep")
    return found


def _exit_code(end: ActionEnd) -> int | None:
    code = (end.result or {}).get("exit_code")
    return code if isinstance(code, int) else None


def _why(end: ActionEnd) -> str:
    code = _exit_code(end)
    said = end.detail or (f"exit code {code}" if code is not None else "")
    return (
        f"action {end.id} is {end.outcome}: {said}" if said else f"action {end.id} is {end.outcome}"
    )
