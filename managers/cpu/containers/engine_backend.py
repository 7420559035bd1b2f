"""The engine backend: `docker update` and `docker exec`, as in the paper (§5.2).

It works for engines on other machines too. Processes are ended by a command inside the container:
`kill -9 -1` there reaches all processes but the first and itself, at one instant.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Final

from managers.cpu.command_line import EXECUTE
from managers.cpu.containers.cgroups import (
    LEAST_QUOTA_MICROSECONDS,
    LEAST_SHARES,
    NORMAL_SHARES,
    PERIOD_MICROSECONDS,
    Usage,
    cpu_list,
    quota_microseconds,
)
from managers.cpu.containers.docker_engine import (
    DockerEngine,
    DockerNotFound,
    DockerRefused,
    DockerUnavailable,
)
from managers.cpu.containers.environment import CpuShare, Environment
from managers.cpu.containers.exec_backends import (
    ContactLost,
    ContainerTermination,
    Execution,
)
from managers.cpu.containers.invocation import ContainerInvocation
from managers.cpu.containers.shell import Frames
from managers.cpu.kept_output import NOTHING
from managers.cpu.output import BoundedOutput

_CHUNK_BYTES: Final = 65536
_STDOUT: Final = 1
#: Interval of polling for the end of a command whose output another process holds open.
_ASK_SECONDS: Final = 0.1
#: The engine records the end a moment after the output ended.
_SOON_SECONDS: Final = 0.005
_LONGEST_PAUSE_SECONDS: Final = 0.2
#: The first process of a container and the sleep that it waits for.
OWN_PROCESSES: Final = 2
#: A shell that reads the standard input from a file, not from the engine's stream.
_WITH_INPUT: Final = f'exec <"$TANGRAM_STDIN"; {EXECUTE}'


class EngineBackend:
    """Runs actions through the engine."""

    name = "api"

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._resizing: set[asyncio.Task[None]] = set()

    async def grow(self, environment: Environment, share: CpuShare) -> None:
        """Give a container the cores of an action."""
        await self._apply(environment, share)

    async def shrink(self, environment: Environment, share: CpuShare) -> None:
        """Take them back, after earlier resizes."""
        if self._resizing:
            await asyncio.wait(set(self._resizing))
        await self._apply(environment, share)

    def resize(self, environment: Environment, share: CpuShare) -> None:
        """Change the cores of a running action, soon."""
        environment.share = share
        task = asyncio.get_running_loop().create_task(self._apply_quietly(environment, share))
        self._resizing.add(task)
        task.add_done_callback(self._resizing.discard)

    def usage(self, environment: Environment) -> Usage | None:
        """Return None: usage is unknown without files of the control group."""
        return None

    async def begin(self, environment: Environment, invocation: ContainerInvocation) -> Execution:
        """Start an exec and read its output."""
        variables = invocation.variables
        command = invocation.command
        if invocation.stdin is not None:
            command = ["/bin/sh", "-c", _WITH_INPUT, "sh", *command]
            variables = {**variables, "TANGRAM_STDIN": f"/workspace/{_input_name(environment)}"}
            (environment.workspace / _input_name(environment)).write_bytes(invocation.stdin)
        try:
            exec_id, stream = await self._engine.begin_exec(
                environment.container, ["/bin/sh", "-c", EXECUTE, "sh", *command],
                environment=variables, workdir=invocation.cwd,
            )  # fmt: skip
        except DockerUnavailable as error:
            raise ContactLost(str(error)) from error
        outputs = BoundedOutput(invocation.output), BoundedOutput(invocation.output)
        reader = _ExecReader(stream, *outputs)
        status = asyncio.ensure_future(self._status(exec_id, reader))
        # Retrieved here: the run may have ended when it fails.
        status.add_done_callback(lambda done: done.cancelled() or done.exception())
        execution = Execution(status, *outputs, cleanups=[reader.close, status.cancel])
        if invocation.stdin is not None:
            left = environment.workspace / _input_name(environment)
            execution.cleanups.append(lambda: left.unlink(missing_ok=True))
        return execution

    async def _status(self, exec_id: str, reader: _ExecReader) -> int:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.ended.wait(), _ASK_SECONDS)
            try:
                facts = await self._engine.inspect_exec(exec_id)
            except (DockerUnavailable, DockerRefused) as error:
                raise ContactLost(str(error)) from error
            if not facts["Running"] and facts["ExitCode"] is not None:
                return int(facts["ExitCode"])
            if reader.ended.is_set():
                await asyncio.sleep(_SOON_SECONDS)

    async def ask_to_end(self, environment: Environment) -> None:
        """Send SIGTERM to all but the first process."""
        await self._kill(environment, "TERM")

    async def end(self, environment: Environment, patience_seconds: float) -> ContainerTermination:
        """Kill all but the first process, repeatedly, until only it and its sleep are left."""
        killed = False
        pause = _SOON_SECONDS
        try:
            async with asyncio.timeout(patience_seconds):
                while await self._engine.count_processes(environment.container) > OWN_PROCESSES:
                    killed = True
                    await self._kill(environment, "KILL")
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        except DockerNotFound:
            pass
        except (TimeoutError, DockerUnavailable, DockerRefused) as error:
            return ContainerTermination(
                None, f"what runs in {environment.name}: {type(error).__name__} {error}"
            )
        return ContainerTermination(None if killed else 0)

    async def _kill(self, environment: Environment, name: str) -> None:
        """Signal everything but the first process.

        Without capabilities and privileges nothing inside can have another user than this exec.
        """
        with contextlib.suppress(DockerUnavailable, DockerRefused, ContactLost):
            exec_id, stream = await self._engine.begin_exec(
                environment.container, ["/bin/sh", "-c", f"kill -{name} -1"]
            )
            reader = _ExecReader(stream, BoundedOutput(NOTHING), BoundedOutput(NOTHING))
            try:
                await self._status(exec_id, reader)
            finally:
                reader.close()

    async def _apply(self, environment: Environment, share: CpuShare) -> None:
        environment.share = share
        quota = -1 if share.milli is None else quota_microseconds(share.milli)
        await self._engine.update(
            environment.container,
            cpuset_cpus=cpu_list(share.cpus),
            cpu_period=PERIOD_MICROSECONDS,
            cpu_quota=max(quota, LEAST_QUOTA_MICROSECONDS) if quota > 0 else quota,
            cpu_shares=LEAST_SHARES if share.yields else NORMAL_SHARES,
        )

    async def _apply_quietly(self, environment: Environment, share: CpuShare) -> None:
        with contextlib.suppress(DockerUnavailable, DockerRefused):
            await self._apply(environment, share)


class _ExecReader:
    """Reads the output of one exec until it ends."""

    def __init__(self, stream: socket.socket, stdout: BoundedOutput, stderr: BoundedOutput) -> None:
        self._loop = asyncio.get_running_loop()
        self._stream = stream
        self._outputs = stdout, stderr
        self._frames = Frames()
        self.ended = asyncio.Event()
        stream.setblocking(False)
        self._loop.add_reader(stream, self._read)

    def _read(self) -> None:
        try:
            data = self._stream.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        for kind, content in self._frames.feed(data):
            self._outputs[0 if kind == _STDOUT else 1].add(content)

    def close(self) -> None:
        if not self.ended.is_set():
            self._loop.remove_reader(self._stream)
            self._stream.close()
            self.ended.set()


def _input_name(environment: Environment) -> str:
    return f".{environment.name}.stdin"
