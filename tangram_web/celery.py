"""Composition root of the workers: a Celery worker hosts the parts named in ``TANGRAM_ROLE``.

Each part is a bootstep of the *worker* blueprint (steps of the consumer would restart with every
broker reconnect) and runs in a thread of its own with a Redis connection of its own. Celery tasks
are the slow jobs (`jobs` modules of the apps); nothing of Celery is on the path of an action.

    loop        the scheduler loop: one leader, the others are standbys
    node        the node worker of this machine
    projector   rows, live frames and metrics, made from the journal
    jobs        retention, webhook deliveries and simulations: Celery tasks and their schedule
    rollout     rollouts of agents: many at once, by handlers in processes of their own
    fleets      the keeper of fleets, which probes their workers; hosted with the projector
    groups      the keeper of node groups, which has engines run node workers; hosted with the projector
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from logging.config import dictConfig
from pathlib import Path
from threading import Event
from typing import Any, Final

import django
from celery import Celery, bootsteps, signals

# Almost nothing of what is loaded is garbage; `collect_rarely` enables collections once a part is started.
gc.disable()
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tangram_web.settings")


def _roles() -> list[str]:
    return [name for name in os.environ.get("TANGRAM_ROLE", "").split(",") if name]


if _roles() == ["node"] and os.environ.get("TANGRAM_JOIN"):
    from tangram_web.node_joining import CannotJoin, join

    try:
        join(os.environ)  # it sets the address of Redis, which the settings read
    except (CannotJoin, OSError) as error:
        raise SystemExit(f"TANGRAM_JOIN: {error}") from error

#: A worker of a node alone reads neither the database nor the configuration. Without the apps of Django it is smaller by
#: a quarter, and there sooner.
_HAS_APPS: Final = _roles() != ["node"]
if _HAS_APPS:
    django.setup()

from django.conf import settings  # noqa: E402 - needs the environment above
from kombu.transport import redis as transport  # noqa: E402

from scheduler.runtime.hosted_thread import HostedThread, in_event_loop  # noqa: E402
from tangram_web.lib import bus, oom_scores  # noqa: E402
from tangram_web.lib.garbage import collect_rarely  # noqa: E402
from tangram_web.lib.jobs import QUEUE, stopping, visibility_seconds  # noqa: E402
from tangram_web.lib.signal_wakeups import wake_on_signals  # noqa: E402

Work = Callable[[Event], None]

#: Roles that run and enqueue no jobs. Their modules take a tenth of a second, by which a worker would be back later.
_WITHOUT_JOBS: Final = frozenset({"loop", "node", "rollout", "fleets", "groups"})


def _broker_url(redis_url: str) -> str:
    path = redis_url.removeprefix("unix://")
    return redis_url if path == redis_url else f"redis+socket://{path}"


class _Deliveries(transport.QoS):
    """Leaves jobs of lost workers to workers that run jobs: the Redis users of others have no access to them."""

    def restore_visible(self, start: int = 0, num: int = 10, interval: int = 10) -> None:
        """Enqueue jobs again that were delivered and not acknowledged in time."""
        if not _WITHOUT_JOBS.issuperset(_roles()):
            super().restore_visible(start, num, interval)  # type: ignore[no-untyped-call]


class _Channel(transport.Channel):
    """Leaves the messages of a lost connection alone; the schedule enqueues interrupted jobs again.

    kombu 5.7 acknowledges and restores them over the closed connection, which ends the worker.
    """

    do_restore = False
    QoS = _Deliveries

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message unless its connection was lost."""
        if not self.closed:
            super().basic_ack(delivery_tag, multiple)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close without waiting for the message that is asked for; kombu would wait for `brpop_timeout`."""
        self._in_poll = False
        super().close()  # type: ignore[no-untyped-call]


transport.Transport.Channel = _Channel
#: Longest wait for a message; kombu waits for 1 s, which each worker would spend a wake-up on.
transport.Transport.brpop_timeout = 10
_register = transport.Transport.register_with_event_loop


def _register_calmly(self: Any, connection: Any, loop: Any) -> None:
    """Register without the look of each second at queues that expire: without remote control there are none."""
    _register(self, connection, loop)  # type: ignore[no-untyped-call]
    self.cycle._binding_expiry_tref.cancel()
    wake_on_signals(loop)


transport.Transport.register_with_event_loop = _register_calmly  # type: ignore[method-assign]

if not _HAS_APPS:
    dictConfig(settings.LOGGING)
# Celery's own fixup would load the apps.
app = Celery(
    "tangram",
    broker=_broker_url(settings.TANGRAM_REDIS_URL),
    **({} if _HAS_APPS else {"fixups": ()}),
)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    # A Redis without memory answers with a channel error, which must not end the worker.
    broker_channel_error_retry=True,
    worker_send_task_events=False,
    worker_enable_remote_control=False,
    task_default_queue=QUEUE,
    # socket_timeout: a command on a dead connection fails instead of waiting for ever.
    broker_transport_options={
        "socket_timeout": 15.0,
        "global_keyprefix": f"{settings.TANGRAM_KEY_PREFIX}:jobs:",
        "visibility_timeout": visibility_seconds(),
    },
)


if not _roles():
    app.autodiscover_tasks(lambda: settings.INSTALLED_APPS, related_name="jobs")


def load_jobs() -> None:
    """Load the jobs of all apps, where a role may run or enqueue them."""
    if _WITHOUT_JOBS.issuperset(_roles()):
        return
    app.autodiscover_tasks(lambda: settings.INSTALLED_APPS, related_name="jobs", force=True)


def _loop() -> list[tuple[str, Work]]:
    from managers.registry import load
    from scheduler.runtime.liveness import process_name
    from scheduler.runtime.loop.leadership import Leadership
    from scheduler.runtime.loop.scheduler_loop import SchedulerLoop
    from scheduler.runtime.loop.watchdog import Watchdog, WatchedLoop
    from scheduler.runtime.redis.clients import connect
    from tangram_web.pools.selectors import current_config
    from tangram_web.records import epochs

    client = connect(settings.TANGRAM_REDIS_URL)
    keys, name = bus.keys(), process_name("loop")
    config = current_config()
    leadership = Leadership(
        client,
        keys,
        name,
        epoch_floor=epochs.last_epoch,
        epoch_won=epochs.epoch_won,
        confirmation=settings.TANGRAM_REDIS_WAIT,
    )
    registry = load()
    watchdog = Watchdog(WatchedLoop(settings.TANGRAM_REDIS_URL, keys.hung_pass, keys.leader, name))
    watchdog.start()
    loop = SchedulerLoop(
        client,
        keys,
        registry.make_ledger,
        leadership,
        config,
        journal_seconds=settings.TANGRAM_JOURNAL_SECONDS,
        consumers=("projector",),
        watch=watchdog,
        redis_package=settings.TANGRAM_REDIS_PACKAGE,
        socket=settings.TANGRAM_LEADER_SOCKET,
    )
    bus.publish_config(config)
    return [("loop", loop.run)]


def _own_folders() -> list[Path]:
    """Return the folders of this machine that Redis and the database write to, where they run here."""
    database = settings.DATABASES["default"]
    named = [Path(str(database["NAME"])).parent] if "sqlite" in database["ENGINE"] else []
    return [settings.TANGRAM_HOME, settings.TANGRAM_HOME / "redis", *named]


def _node() -> list[tuple[str, Work]]:
    from urllib.parse import urlsplit

    from domain.redis_access import RedisRole, user_name
    from managers.common.affinity import confine, usable_cores
    from managers.cpu.shared_cores import SharedCores
    from managers.registry import load
    from scheduler.runtime.node.worker import node_worker
    from scheduler.runtime.redis.clients import connect_async
    from tangram_web.lib.sealing import open_secret

    user = user_name(bus.keys(), RedisRole.NODE, settings.TANGRAM_NODE)
    options = {
        "own_redis_user": user if urlsplit(settings.TANGRAM_REDIS_URL).username == user else "",
        "cpus": settings.TANGRAM_NODE_CPUS,
        "reserved_cpus": settings.TANGRAM_NODE_RESERVED_CPUS,
        "memory_bytes": settings.TANGRAM_NODE_MEMORY_BYTES,
        "service_memory_bytes": settings.TANGRAM_NODE_SERVICE_MEMORY_BYTES,
        "gpus": settings.TANGRAM_NODE_GPUS,
        "gpu_memory_bytes": settings.TANGRAM_NODE_GPU_MEMORY_BYTES,
        "backend": settings.TANGRAM_CPU_BACKEND,
        "isolation": settings.TANGRAM_NODE_ISOLATION,
        "door": settings.TANGRAM_NODE_DOOR,
        "door_address": settings.TANGRAM_NODE_DOOR_ADDRESS,
        "bodies_directory": settings.TANGRAM_BODIES_DIRECTORY,
        "object_store": settings.TANGRAM_OBJECT_STORE,
        "secrets_directory": settings.TANGRAM_SECRETS_DIRECTORY,
        "disk_folders": ":".join(map(str, _own_folders())),
        **settings.TANGRAM_DISK,
        **settings.TANGRAM_ENVIRONMENT,
        **settings.TANGRAM_DOCKER,
        **settings.TANGRAM_APPTAINER,
    }

    async def work() -> None:
        client = connect_async(settings.TANGRAM_REDIS_URL)
        worker = node_worker(
            client,
            bus.keys(),
            load(),
            name=settings.TANGRAM_NODE,
            pool=settings.TANGRAM_NODE_POOL,
            state_directory=settings.TANGRAM_HOME / "nodes" / settings.TANGRAM_NODE,
            settings=options,
            open_secret=open_secret,
            leader_socket=settings.TANGRAM_LEADER_SOCKET,
            confirmation=settings.TANGRAM_REDIS_WAIT,
        )
        try:
            await worker.run()
        finally:
            await client.aclose()

    partition = SharedCores.choose(usable_cores(), options)
    if partition.shared:
        confine(os.getpid(), partition.shared)
    return [("node", in_event_loop(work))]


def _projector() -> list[tuple[str, Work]]:
    from tangram_web.job_schedule import stand_in
    from tangram_web.journal_consumers import bodies, rows_and_frames
    from tangram_web.problems.watch import watch

    jobs = [] if "jobs" in _roles() else [("jobs", stand_in)]
    kept = [] if "fleets" in _roles() else _fleets()
    groups = [] if "groups" in _roles() else _groups()
    return [*rows_and_frames(), ("bodies", bodies), ("problems", watch), *jobs, *kept, *groups]


def _fleets() -> list[tuple[str, Work]]:
    from scheduler.runtime.fleets.keeper import FleetKeeper
    from scheduler.runtime.redis.clients import connect_async
    from tangram_web.lib.orm_calls import in_thread
    from tangram_web.records.selectors import action_view

    row_of = in_thread(action_view)

    async def why_ended(action: str) -> str:
        view = await row_of(action)
        return view.detail or "" if view is not None and view.outcome is not None else ""

    async def keep() -> None:
        client = connect_async(settings.TANGRAM_REDIS_URL)
        try:
            await FleetKeeper(client, bus.keys(), why_ended=why_ended).run()
        finally:
            await client.aclose()

    return [("fleets", in_event_loop(keep))]


def _groups() -> list[tuple[str, Work]]:
    from tangram_web.node_groups_role import node_groups_role

    return [("groups", in_event_loop(node_groups_role))]


def _jobs() -> list[tuple[str, Work]]:
    from tangram_web.job_schedule import schedule_jobs

    return [("jobs", schedule_jobs)]


def _rollout() -> list[tuple[str, Work]]:
    from tangram_web.rollout_role import rollout_role

    return [("rollout", in_event_loop(rollout_role))]


ROLES: dict[str, Callable[[], list[tuple[str, Work]]]] = {
    "loop": _loop,
    "node": _node,
    "projector": _projector,
    "jobs": _jobs,
    "rollout": _rollout,
    "fleets": _fleets,
    "groups": _groups,
}


class HostedParts(bootsteps.StartStopStep):
    """Runs the parts of this worker's roles from its start to its stop."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._threads: list[HostedThread] = []

    def start(self, parent: Any) -> None:
        """Start every part as soon as its modules are loaded, those of jobs behind what an action needs."""
        oom_scores.set_score(oom_scores.TANGRAM)
        for role in _roles():
            if role == "jobs":
                load_jobs()
            threads = [HostedThread(name, work) for name, work in ROLES[role]()]
            self._threads += threads
            for thread in threads:
                thread.start()
        load_jobs()
        collect_rarely()

    def stop(self, parent: Any) -> None:
        """Stop every part; one that waits for an entry of the journal notices it within `BLOCK_SECONDS`."""
        for thread in self._threads:
            thread.ask()
        for thread in reversed(self._threads):
            thread.stop()
        self._threads = []

    terminate = stop


app.steps["worker"].add(HostedParts)


@signals.worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _stop_jobs(**_: object) -> None:
    """Ask running jobs to end: the pool waits for them."""
    stopping.set()


@signals.setup_logging.connect  # type: ignore[untyped-decorator]
def _keep_logging(**_: object) -> None:
    """Leave logging as Django's settings made it."""
