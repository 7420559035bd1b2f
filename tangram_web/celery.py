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
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import django
from celery import Celery, bootsteps, signals

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tangram_web.settings")
django.setup()

from django.conf import settings  # noqa: E402 - needs the environment above
from kombu.transport import redis as transport  # noqa: E402

from scheduler.runtime.hosted_thread import HostedThread, in_event_loop  # noqa: E402
from tangram_web.lib import bus, oom_scores  # noqa: E402
from tangram_web.lib.garbage import collect_rarely  # noqa: E402
from tangram_web.lib.jobs import QUEUE, stopping, visibility_seconds  # noqa: E402

Work = Callable[[Event], None]


def _broker_url(redis_url: str) -> str:
    path = redis_url.removeprefix("unix://")
    return redis_url if path == redis_url else f"redis+socket://{path}"


class _Channel(transport.Channel):
    """Leaves the messages of a lost connection alone; the schedule enqueues interrupted jobs again.

    kombu 5.7 acknowledges and restores them over the closed connection, which ends the worker.
    """

    do_restore = False

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message unless its connection was lost."""
        if not self.closed:
            super().basic_ack(delivery_tag, multiple)  # type: ignore[no-untyped-call]


transport.Transport.Channel = _Channel

app = Celery("tangram", broker=_broker_url(settings.TANGRAM_REDIS_URL))
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    # A Redis without memory answers with a channel error, which must not end the worker.
    broker_channel_error_retry=True,
    worker_send_task_events=False,
    task_default_queue=QUEUE,
    # socket_timeout: a command on a dead connection fails instead of waiting for ever.
    broker_transport_options={
        "socket_timeout": 15.0,
        "global_keyprefix": f"{settings.TANGRAM_KEY_PREFIX}:jobs:",
        "visibility_timeout": visibility_seconds(),
    },
)


def _roles() -> list[str]:
    return [name for name in os.environ.get("TANGRAM_ROLE", "").split(",") if name]


#: Roles that run and enqueue no jobs. Their modules take a tenth of a second, by which a worker would be back later.
_WITHOUT_JOBS = frozenset({"loop", "node", "rollout", "fleets"})
if not _roles() or not _WITHOUT_JOBS.issuperset(_roles()):
    app.autodiscover_tasks(lambda: settings.INSTALLED_APPS, related_name="jobs")


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
    )
    bus.publish_config(config)
    return [("loop", loop.run)]


def _own_folders() -> list[Path]:
    """Return the folders of this machine that Redis and the database write to, where they run here."""
    database = settings.DATABASES["default"]
    named = [Path(str(database["NAME"])).parent] if "sqlite" in database["ENGINE"] else []
    return [settings.TANGRAM_HOME, settings.TANGRAM_HOME / "redis", *named]


def _node() -> list[tuple[str, Work]]:
    from managers.common.affinity import confine, usable_cores
    from managers.cpu.shared_cores import SharedCores
    from managers.registry import load
    from scheduler.runtime.node.worker import node_worker
    from scheduler.runtime.redis.clients import connect_async
    from tangram_web.lib.sealing import open_secret

    options = {
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
    from tangram_web.journal_consumers import bodies, frames, projector
    from tangram_web.problems.watch import watch

    jobs = [] if "jobs" in _roles() else [("jobs", stand_in)]
    kept = [] if "fleets" in _roles() else _fleets()
    own = [("projector", projector), ("frames", frames), ("bodies", bodies), ("problems", watch)]
    return [*own, *jobs, *kept]


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
}


class HostedParts(bootsteps.StartStopStep):
    """Runs the parts of this worker's roles from its start to its stop."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._threads: list[HostedThread] = []

    def start(self, parent: Any) -> None:
        """Start every part."""
        oom_scores.set_score(oom_scores.TANGRAM)
        for role in _roles():
            self._threads += [HostedThread(name, work) for name, work in ROLES[role]()]
        for thread in self._threads:
            thread.start()
        collect_rarely()

    def stop(self, parent: Any) -> None:
        """Stop every part, last started first."""
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
