"""Stage calls: what a handler asks of its worker, answered from the log and through the port.

Rules
1. An action is stored as a call, submitted under the key of the call, awaited, and stored as an observation; only then its
   handler gets the end. What the log has already is answered from it (`rollout.core.calls`). The end of a command in a
   session that ended unknown is found by looks at the session.
2. A call that ends the stage (its environment is lost, the action ended unknown, the rollout is not ours any more)
   gets no answer: the handler is stopped.
3. What is wrong with a request is the handler's: it gets `CallRefused`.
4. Waiting for a fleet is not counted, the time with its worker is. What a generation sampled is stored by its turn alone.
5. Actions that are open when a stage ends are cancelled, and channels closed; after a crash of the process actions stay,
   for the handler that continues.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from domain.action import Outcome
from domain.errors import Conflict, Gone, InvalidRequest, NotFound, TangramError, Unreadable
from domain.rollouts import Stage
from rollout.core.calls import DivergedFromLog, interruption, known_call, new_call, observation
from rollout.core.records import ARTEFACT, TURN, StoredCall
from rollout.core.session_looks import MAX_LOOKS, NeverTaken, after_look, look_at
from rollout.ports import (
    ActionEnd,
    Channel,
    GenerationRequest,
    LostEnvironment,
    Seat,
    Superseded,
)
from rollout.worker.handler_pool import HandlerCallRefused, HandlerStopped
from rollout.worker.run_context import RunContext
from rollout.worker.stage_clock import TimerHold

#: Time between two looks for a backend, while there is none.
BACKEND_SECONDS: Final = 0.5


class StageCalls:
    """The calls of one rollout's handler."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._machine = context.machine
        self._port = context.port
        self._actions: set[str] = set()
        self._channels: dict[int, Channel] = {}
        self._channel_numbers = 0
        self._opening = asyncio.Lock()
        self._methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "execute": self._execute,
            "put": self._put,
            "get": self._get,
            "open_session": self._open_session,
            "connect": self._connect,
            "channel_send": self._channel_send,
            "channel_receive": self._channel_receive,
            "channel_close": self._channel_close,
            "agent_access": self._agent_access,
            "backends": self._backends,
            "engine": self._engine,
            "generate": self._generate,
            "turn": self._turn,
            "artefact": self._artefact,
        }

    async def answer(self, method: str, arguments: list[Any]) -> Any:
        """Return the value of a call. Raises HandlerCallRefused, HandlerStopped."""
        machine, interrupt = self._machine, self._context.interrupt
        try:
            return await self._methods[method](*arguments)
        except Superseded:
            interrupt(machine.dropped)
        except LostEnvironment as error:
            why = str(error)
            interrupt(lambda: machine.environment_lost(why))
        except DivergedFromLog as error:
            why = str(error)
            interrupt(lambda: machine.refused(why))
        except (KeyError, TypeError, ValueError) as error:
            raise HandlerCallRefused(f"{method}: {type(error).__name__}: {error}") from error
        except (TangramError, OSError) as error:
            if is_refusal(error):
                raise HandlerCallRefused(str(error)) from error
            why = f"{type(error).__name__}: {error}"
            interrupt(lambda: machine.broken(why))
        raise HandlerStopped

    async def end_stage(self) -> None:
        """Cancel the actions that are open, and close the channels."""
        await self._context.settled()
        actions, self._actions = self._actions, set()
        rollout = self._context.rollout
        ends = [self._port.cancel(rollout, each, "its stage has ended") for each in actions]
        await asyncio.gather(*ends, self.drop_channels(), return_exceptions=True)

    async def drop_channels(self) -> None:
        """Close the channels; what runs at their other ends may continue."""
        channels, self._channels = self._channels, {}
        closes = [channel.close() for channel in channels.values()]
        await asyncio.gather(*closes, return_exceptions=True)

    async def open_trajectory(self) -> None:
        """Open the trajectory of the present stage, once."""
        step = self._machine.opening()
        rollout, context = self._context.rollout, self._context
        if not step.source:
            environment = self._machine.facts.request.environment
            await context.patient(lambda: self._port.open(rollout, step.name, environment))
        else:
            try:
                await context.patient(lambda: self._port.fork(rollout, step.source, [step.name]))
            except (NotFound, Gone, Conflict) as error:
                raise LostEnvironment(f"{step.source} cannot be forked: {error}") from error
        self._machine.opened(step.name)

    async def _fork_of_eval(self) -> None:
        """Open the trajectory of EVAL with its first call; those of other stages are open."""
        machine = self._machine
        if machine.stage is Stage.EVAL and machine.facts.request.environment is not None:
            async with self._opening:
                if not machine.is_open(machine.trajectory):
                    await self._context.finishing(self.open_trajectory())

    async def _execute(self, name: str, members: dict[str, Any]) -> dict[str, Any]:
        context, machine = self._context, self._machine
        call = known_call(machine, name, members)
        new = call is None
        if call is None:
            context.note()
            record = new_call(machine, name, members, context.clock.remaining())
            await context.append(record)
            call = machine.facts.calls[record.header["key"]]
        if call.end is None:
            await self._fork_of_eval()
            end = await self._run(call)
            if call.end is None:
                context.note()
                await context.append(observation(machine, call.key, end))
        return {"key": call.key, "end": msgspec.to_builtins(call.end), "new": new}

    async def _run(self, call: StoredCall) -> ActionEnd:
        """Submit the action of a call, or find it, and await its end; look at the session of one that ended unknown."""
        with self._context.clock.held() as hold:
            end = await self._end_of(call.key, call.members, hold)
            look = None if end.environment_lost else look_at(call)
            for number in range(1, MAX_LOOKS + 1):
                if end.outcome != Outcome.UNKNOWN or look is None:
                    break
                seen = await self._end_of(f"{call.key}.look{number}", look, hold)
                try:
                    end = after_look(self._machine.facts, call, end, seen)
                    break
                except NeverTaken:
                    end = await self._end_of(f"{call.key}.again{number}", call.members, hold)
        if (how := interruption(self._machine, call, end)) is not None:
            self._context.interrupt(how)
            raise HandlerStopped
        return end

    async def _end_of(self, key: str, members: dict[str, Any], hold: TimerHold) -> ActionEnd:
        """Submit an action, or find it, and await its end."""
        context = self._context
        action = await context.finishing(self._submit(key, members))
        await context.report(awaited=action)
        end = await context.patient(lambda: self._port.wait(context.rollout, action))
        hold.ran(end.execution_seconds)
        self._actions.discard(action)
        return end

    async def _submit(self, key: str, members: dict[str, Any]) -> str:
        context = self._context
        action = await context.patient(
            lambda: self._port.submit(context.rollout, context.attempt, key, members)
        )
        self._actions.add(action)
        return action

    async def _put(self, path: str, content: bytes) -> None:
        await self._fork_of_eval()
        name = self._machine.trajectory
        await self._context.patient(
            lambda: self._port.put(self._context.rollout, name, path, content)
        )

    async def _get(self, path: str) -> bytes:
        await self._fork_of_eval()
        name = self._machine.trajectory
        return await self._context.patient(
            lambda: self._port.get(self._context.rollout, name, path)
        )

    async def _open_session(self, session: str, members: dict[str, Any]) -> None:
        await self._fork_of_eval()
        name = self._machine.trajectory
        await self._context.patient(
            lambda: self._port.open_session(self._context.rollout, name, session, members)
        )

    async def _connect(self, port: int) -> int:
        await self._fork_of_eval()
        name = self._machine.trajectory
        channel = await self._context.patient(
            lambda: self._port.connect(self._context.rollout, name, port)
        )
        self._channel_numbers += 1
        self._channels[self._channel_numbers] = channel
        return self._channel_numbers

    async def _channel_send(self, number: int, data: bytes) -> None:
        await self._channels[number].send(data)

    async def _channel_receive(self, number: int) -> bytes:
        return await self._channels[number].receive()

    async def _channel_close(self, number: int) -> None:
        if (channel := self._channels.pop(number, None)) is not None:
            await channel.close()

    async def _agent_access(self) -> dict[str, str]:
        rollout, name = self._context.rollout, self._machine.trajectory
        token = await self._context.patient(lambda: self._port.agent_token(rollout, name))
        return {"trajectory": name, "token": token}

    async def _backends(self, wait: bool) -> list[dict[str, Any]]:
        context = self._context
        if context.rollout.fleet:
            raise InvalidRequest(
                f"the model of the rollout is fleet {context.rollout.fleet!r}, which has no backends to call: use"
                " models_of_process, or Job.generate"
            )
        if not context.rollout.llm:
            raise InvalidRequest("the rollout names no pool of backends: submit it with llm")
        seats: list[Seat] = list(await self._port.backends(context.rollout.llm))
        if wait and not seats:
            with context.clock.held():
                while not seats:
                    await context.pause(BACKEND_SECONDS)
                    seats = list(await self._port.backends(context.rollout.llm))
        return [msgspec.to_builtins(seat) for seat in seats]

    async def _engine(self) -> str:
        context = self._context
        return await context.patient(lambda: self._port.engine(self._fleet()))

    async def _generate(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Make a generation of the rollout's fleet in the trajectory of the stage."""
        self._fleet()
        await self._fork_of_eval()
        context = self._context
        left = context.clock.remaining()
        asked = GenerationRequest(path, body, left if math.isfinite(left) else None)

        async def begun(action: str) -> None:
            await context.report(awaited=action)

        with context.clock.held() as hold:
            answer = await self._port.generate(
                context.rollout, context.attempt, self._machine.trajectory, asked, begun
            )
            hold.ran(answer.execution_seconds)
        await context.report()
        found: dict[str, Any] = msgspec.to_builtins(answer, builtin_types=(bytes,))
        return found

    def _fleet(self) -> str:
        rollout = self._context.rollout
        if not rollout.fleet:
            raise InvalidRequest("the rollout names no fleet: submit it with fleet:NAME as llm")
        return rollout.fleet

    async def _turn(self, header: dict[str, Any], arrays: dict[str, bytes]) -> None:
        from rollout.tokens.turn_records import turn_of  # numpy: only workers that sample need it

        record = self._machine.record(TURN, header, arrays)
        try:
            follows = turn_of(record).follows
        except Unreadable as error:
            raise InvalidRequest(str(error)) from error
        for counted in ("prompt_tokens", "response_tokens"):
            int(header[counted])
        if follows is not None and not 0 <= follows < self._machine.facts.turns:
            raise InvalidRequest(f"a turn continues turn {follows}, which is not stored")
        self._context.note()
        await self._context.append(record)
        await self._context.report()

    async def _artefact(self, header: dict[str, Any], content: bytes) -> None:
        self._context.note()
        await self._context.append(self._machine.record(ARTEFACT, header, {"content": content}))


def is_refusal(error: Exception) -> bool:
    """Say whether an error is the caller's: a refusal of Tangram, or a status of 400 to 499."""
    return isinstance(error, InvalidRequest) or 400 <= getattr(error, "status", 0) < 500
