"""Start and end of a Tangram: from an empty folder to an address to open."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import PIPE
from collections.abc import Coroutine, Mapping
from typing import Any

from domain.redis_keys import Keys
from tangram_web.supervisor import readiness, stack
from tangram_web.supervisor.address import PortClaim, ServerAddress, claim_port
from tangram_web.supervisor.children import Program, end, spawn
from tangram_web.supervisor.console import Console, welcome
from tangram_web.supervisor.data_folder import DataFolder, mark_schema_current, schema_is_current
from tangram_web.supervisor.errors import StartFailed
from tangram_web.supervisor.options import Options
from tangram_web.supervisor.part_placement import PartPlacement, partition_of
from tangram_web.supervisor.redis_server import (
    EmbeddedRedis,
    ExternalRedis,
    choose_redis,
    delete_heartbeats,
    wait_for_external,
    wait_for_socket,
)
from tangram_web.supervisor.reserve import Reserve
from tangram_web.supervisor.supervisor import Supervisor, tail

#: Longest time until all parts are ready; a first start on a slow machine takes some 20 seconds.
START_TIMEOUT_SECONDS = 120.0
#: Longest wait for nodes to join before the welcome text.
JOIN_TIMEOUT_SECONDS = 5.0


async def up(options: Options, console: Console) -> None:
    """Run a Tangram until a signal ends it. Raises StartFailed."""
    home = DataFolder.open(options.home)
    with home.locked():
        placement = PartPlacement(partition_of(options, os.environ), home.path)
        claim = claim_port(options.host, options.port)
        supervisor = Supervisor(home, stack.ROOT, console.step, place=placement.place)
        reserve = Reserve(home.path, console.step, options.reserve_bytes)
        stop = asyncio.Event()
        _listen(stop, supervisor, console)
        keeping = asyncio.create_task(reserve.keep(supervisor.hurry))
        try:
            await first_of(
                start(options, home, supervisor, placement, console, claim),
                supervisor.watch(),
                stop.wait(),
            )
            await first_of(stop.wait(), supervisor.rotate_logs())
        finally:
            console.waiting("ending all parts …")
            await supervisor.stop()
            await asyncio.to_thread(_end_services, home, console)
            claim.release()
            placement.close()
            await cancelled(keeping)
            console.step("all parts have ended")


async def start(
    options: Options,
    home: DataFolder,
    supervisor: Supervisor,
    placement: PartPlacement,
    console: Console,
    claim: PortClaim,
) -> None:
    """Start all parts and write their addresses."""
    console.step(f"data in {home.path}")
    redis = await start_redis(home, supervisor, console)
    address = ServerAddress(options.host, claim.port)
    environment = {
        "TANGRAM_HOME": str(home.path),
        "TANGRAM_BODIES_DIRECTORY": os.environ.get("TANGRAM_BODIES_DIRECTORY")
        or str(home.path / "bodies"),
        "TANGRAM_REDIS_URL": redis.url,
        "TANGRAM_REDIS_PACKAGE": redis.package,
        "PYTHONUNBUFFERED": "1",
    }
    setup = stack.setup(address, environment)
    access: Mapping[str, str] = {}
    if not schema_is_current(home, stack.ROOT, os.environ):
        console.waiting("preparing the database …")
        access = await prepare(home, setup)
        console.step("database prepared")
    workers = stack.workers(options, environment, placement, root=os.geteuid() == 0)
    first, *others = stack.webs(address, environment, options.webs)
    await supervisor.start([*workers.needed, first])
    await readiness.wait_until_ready(
        address.local_host,
        address.port,
        token=access.get("token") or home.stored_token(),
        timeout_seconds=START_TIMEOUT_SECONDS,
        waiting=console.waiting,
        has_nodes=options.nodes > 0,
    )
    console.step(f"web, loop{', node' if options.nodes else ''} and projector are ready")
    # Where it has nothing to migrate it runs last: until then its CPU time is that of the others.
    access = access or await prepare(home, setup)
    await readiness.check_is_ours(address.local_host, address.port, token=access["token"])
    placement.settle((child.program, child.pid) for child in supervisor.children)
    console.step(placement.description)
    await supervisor.start([*others, *workers.later])
    if options.demo:
        await supervisor.start([stack.demo(address.url, access["token"], environment)])
    nodes = await readiness.nodes_joined(
        address.local_host,
        address.port,
        token=access["token"],
        count=options.nodes,
        timeout_seconds=JOIN_TIMEOUT_SECONDS,
    )
    console.say(welcome(access, home, redis, nodes, options))


async def start_redis(
    home: DataFolder, supervisor: Supervisor, console: Console
) -> EmbeddedRedis | ExternalRedis:
    """Start the embedded Redis, or check the external one."""
    redis = choose_redis(home, os.environ)
    if isinstance(redis, EmbeddedRedis):
        await supervisor.start([redis.program()])
        await wait_for_socket(redis.socket, redis.password)
        await delete_heartbeats(
            redis.socket, redis.password, os.environ.get("TANGRAM_KEY_PREFIX") or Keys().prefix
        )
    else:
        await wait_for_external(redis.url)
    console.step(f"Redis: {redis.description}")
    if isinstance(redis, EmbeddedRedis) and (found := redis.judgement).cure:
        console.step(f"Redis: {found.detail}; {found.cure}")
    return redis


async def prepare(home: DataFolder, setup: Program) -> Mapping[str, str]:
    """Run ``setup`` and return its output: login address and token."""
    log = home.log(setup.name)
    with log.open("ab") as errors:
        process = await spawn(setup, stack.ROOT, PIPE, errors.fileno())
    try:
        output, _ = await process.communicate()
    finally:
        await end(process, setup.grace_seconds)
    if process.returncode != 0:
        raise StartFailed(f"the database could not be prepared:\n{tail(log)}")
    access: Mapping[str, str] = json.loads(output)
    mark_schema_current(home, stack.ROOT)
    return access


def _end_services(home: DataFolder, console: Console) -> None:
    """End the services of node workers that were killed before they had ended them."""
    from managers.gpu.engines.leftovers import end_left_by  # a start does not need it

    count = sum(end_left_by(each) for each in (home.path / "nodes").glob("*/gpu"))
    if count:
        console.step(f"ended {count} processes of services that outlived their node worker")


def _listen(stop: asyncio.Event, supervisor: Supervisor, console: Console) -> None:
    def on_signal() -> None:
        if stop.is_set():
            console.step("killing all parts")
            supervisor.kill()
        else:
            stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)


async def first_of(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Wait for the first one, raise its error if any, and cancel the others."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            await cancelled(task)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for it; its error is ignored."""
    task.cancel()
    await asyncio.wait({task})
