"""Composition root of the web process: the gateway and its facades in front of Django and Channels."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application

from contract.routes import API_PREFIX
from facades import registry
from scheduler.runtime.body_store import BodyStore
from scheduler.runtime.gateway.app import Gateway
from scheduler.runtime.gateway.callbacks import Callbacks
from scheduler.runtime.gateway.context import GatewayBackend, GatewayContext
from scheduler.runtime.gateway.http import Receive, Scope, Send
from scheduler.runtime.liveness import WEB, keep_showing_life, next_tick, process_name
from scheduler.runtime.object_store.store_address import open_store
from scheduler.runtime.redis.clients import connect_async, keep_running
from scheduler.runtime.rollouts.log_store import rollout_logs
from tangram_web.lib.garbage import collect_rarely
from tangram_web.lib.orm_calls import in_thread
from tangram_web.metrics.requests import FLUSH_SECONDS, CountedRequests, RequestCounts, keep_storing
from tangram_web.serving.console_environment import ConsoleEnvironment
from tangram_web.serving.console_output import ConsoleOutput
from tangram_web.serving.console_submission import ConsoleSubmission
from tangram_web.serving.requests import LimitedRequests

if TYPE_CHECKING:
    from tangram_web.lib.preloading import PagePreloader

#: Roles that an action needs to run and to be shown.
NEEDED_ROLES = ("loop", "node", "projector")


def django_application() -> ProtocolTypeRouter:
    """Return Django for HTTP, and the live topics of the pages for websockets."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tangram_web.settings")
    http = get_asgi_application()
    # Consumers reach models, which exist only once Django is set up.
    from tangram_web.live.consumers import websocket_urlpatterns

    websockets = AuthMiddlewareStack(URLRouter(websocket_urlpatterns))
    return ProtocolTypeRouter({"http": http, "websocket": AllowedHostsOriginValidator(websockets)})


class _DatabaseCheck:
    """Checks of the database. What is migrated stays so; then its answer alone is checked."""

    def __init__(self) -> None:
        self._is_migrated = False

    def __call__(self) -> dict[str, str]:
        from django.db import DatabaseError, connection
        from django.db.migrations.executor import MigrationExecutor

        missing: list[Any] = []
        try:
            if self._is_migrated:
                connection.cursor().execute("SELECT 1")
            else:
                executor = MigrationExecutor(connection)
                missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
                self._is_migrated = not missing
        except DatabaseError as error:
            return {"database": str(error)}
        return {
            "database": "",
            "migrations": f"{len(missing)} are not applied; run manage.py migrate"
            if missing
            else "",
        }


def _facts() -> dict[str, Any]:
    from redis import RedisError

    from tangram_web.lib import bus
    from tangram_web.live.access import Sight
    from tangram_web.metrics.reading import READERS, read_system
    from tangram_web.problems.reading import problem_lines

    try:
        standing = read_system(bus.redis_client(), bus.keys(), READERS)
    except RedisError as error:
        return {"redis": str(error)}
    return {
        "leader": standing.leader,
        "epoch": standing.epoch,
        "tick_lag_seconds": standing.tick_lag_seconds,
        "inbox_entries": standing.inbox_entries,
        "dead_letters": standing.dead_letters,
        "redis_risks": standing.life_of_leader().get("redis_risks", ""),
        "stream_lag": {
            name: {"entries": lag.entries, "seconds": lag.seconds}
            for name, lag in standing.lags.items()
        },
        "workers": {worker["name"]: worker["role"] for worker in standing.workers},
        "problems": problem_lines(Sight()),
    }


def tangram_application() -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return the whole web process as one ASGI application."""
    behind = django_application()

    from django.conf import settings

    from tangram_web.lib import bus, submissions
    from tangram_web.lib.preloading import PagePreloader
    from tangram_web.live.access import sight_of

    pages = PagePreloader()
    context = GatewayContext(
        connect_async(settings.TANGRAM_REDIS_URL),
        bus.keys(),
        _backend(pages),
        limits=settings.TANGRAM_PROJECT_LIMITS,
        node_requests=settings.TANGRAM_PROJECT_NODE_REQUESTS,
        bodies=BodyStore(Path(folder) if (folder := settings.TANGRAM_BODIES_DIRECTORY) else None),
        rollout_logs=rollout_logs(
            settings.TANGRAM_BODIES_DIRECTORY, settings.TANGRAM_ROLLOUT_LOG_BYTES
        ),
        live_rollouts=settings.TANGRAM_PROJECT_LIVE_ROLLOUTS,
        callbacks=Callbacks(loopback=settings.TANGRAM_WEBHOOKS_LOOPBACK),
        streams=settings.TANGRAM_WEB_STREAMS,
        objects=open_store(settings.TANGRAM_OBJECT_STORE),
        confirmation=settings.TANGRAM_REDIS_WAIT,
    )
    submission = ConsoleSubmission(context)
    submissions.install(submission.submit)
    counts = RequestCounts()
    gateway = Gateway(context, behind, NEEDED_ROLES, registry.entries())
    sights = sync_to_async(sight_of, thread_sensitive=False)

    async def sees_of(user: Any) -> Callable[[str], bool] | None:
        sight = await sights(user)
        return None if sight is None else sight.sees

    output = ConsoleOutput(context, sees_of, AuthMiddlewareStack, gateway)
    console = ConsoleEnvironment(context, sees_of, AuthMiddlewareStack, output)
    limits = settings.TANGRAM_WEB_LIMITS
    counted = CountedRequests(LimitedRequests(console, limits).serve, counts)
    #: Trainers send most requests; pages of the console are not below this path.
    trainers = CountedRequests(LimitedRequests(gateway.serve, limits).serve, counts)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            submission.start()
            await _lifespan(context, counts, gateway, pages.load, receive, send)
        else:
            serving = trainers if scope["path"].startswith(API_PREFIX) else counted
            await serving(scope, receive, send)

    return application


def _backend(pages: PagePreloader) -> GatewayBackend:
    """Return what the gateway reads from the database."""
    from tangram_web.pools.selectors import principal_of
    from tangram_web.records.rollout_selectors import (
        rollout_completions,
        rollout_view,
        rollout_views,
    )
    from tangram_web.records.selectors import (
        action_request,
        action_view,
        completions,
        task_exists,
    )

    database = in_thread(_DatabaseCheck())

    async def checks() -> dict[str, str]:
        return {**await database(), **pages.check()}

    return GatewayBackend(
        authenticate=in_thread(principal_of),
        action_view=in_thread(action_view),
        completions=in_thread(completions),
        checks=checks,
        facts=in_thread(_facts),
        task_exists=in_thread(task_exists),
        action_request=in_thread(action_request),
        rollout_view=in_thread(rollout_view),
        rollout_completions=in_thread(rollout_completions),
        rollouts=in_thread(rollout_views),
    )


def _next_flush() -> float:
    return next_tick(FLUSH_SECONDS)


async def _lifespan(
    context: GatewayContext,
    counts: RequestCounts,
    gateway: Gateway,
    load_pages: Callable[[], None],
    receive: Receive,
    send: Send,
) -> None:
    """Follow the journal, show life and store the request counts while the process runs."""
    client, keys = context.client, context.keys
    own = {
        asyncio.ensure_future(
            keep_storing(client, keys.web_requests, counts, keep_running, _next_flush)
        ),
        asyncio.ensure_future(
            keep_showing_life(client, keys, process_name(WEB), WEB, keep_running)
        ),
    }
    loading: asyncio.Task[None] | None = None
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            # Redis may start later than this process; the first request tries again.
            starting = asyncio.ensure_future(context.start())
            await asyncio.wait({starting}, timeout=5.0)
            if starting.done() and not starting.cancelled():
                starting.exception()
            await send({"type": "lifespan.startup.complete"})
            resuming = asyncio.ensure_future(gateway.resume())
            resuming.add_done_callback(lambda done: done.cancelled() or done.exception())
            # The API is served from here on, pages once they are loaded.
            loading = asyncio.ensure_future(asyncio.to_thread(load_pages))
            loading.add_done_callback(lambda _: collect_rarely())
        else:
            for each in own:
                each.cancel()
            await asyncio.wait({*own, loading} if loading else own)
            await context.stop()
            await send({"type": "lifespan.shutdown.complete"})
            return


application = tangram_application()
