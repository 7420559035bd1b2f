"""``manage.py restore FOLDER``: restore a backup, while only Redis and the database run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

import msgspec
import redis
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from domain.action import Action, ActionState, Outcome
from domain.codec import InboxPart, decode_command, encode
from domain.errors import InvalidRequest, TangramError
from domain.events import ActionCancelRequested, ActionFinished, ActionSubmitted
from managers.registry import load as load_managers
from scheduler.core.state.live import LiveAction
from scheduler.runtime.gateway.idempotency import drop_stored_tokens
from scheduler.runtime.loop.recovery import recover
from scheduler.runtime.redis.clients import connect
from scheduler.runtime.redis.lua_scripts import ADMIT_ALL
from tangram_web.backup import bodies_part, database_part, folder, redis_part
from tangram_web.lib import bus
from tangram_web.lib.sealing import key_ids, key_place
from tangram_web.management.commands.setup import migrate_when_needed
from tangram_web.pools.selectors import current_config

REASON = "restored from a backup of {at}: it may have run since"
#: Messages in one entry of the inbox.
CHUNK = 500


class Command(BaseCommand):
    """Restore a backup without running any of its actions twice."""

    help = "Replace the database and the content of Redis by a backup. Stop all other parts first."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the folder."""
        parser.add_argument("folder", type=Path, help="a folder written by manage.py backup")
        parser.add_argument(
            "--replace", action="store_true", help="delete the data that Redis holds now"
        )

        parser.add_argument(
            "--without-secrets",
            action="store_true",
            help="restore without the key of the backup; its secrets have to be set again",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Check the backup, load Redis (which may refuse) and the database, then end old actions."""
        place = options["folder"]
        client, keys = connect(settings.TANGRAM_REDIS_URL), bus.keys()
        try:
            manifest = folder.read_manifest(place)
            if manifest.prefix != settings.TANGRAM_KEY_PREFIX:
                raise InvalidRequest(f"the backup is of TANGRAM_KEY_PREFIX={manifest.prefix}")
            if not options["without_secrets"]:
                _check_key(manifest.key)
            database_part.check(place / folder.DATABASE, manifest.database)
            count = redis_part.load(client, keys, place / folder.REDIS, replace=options["replace"])
            bodies_part.load(bodies_part.directory(), place / folder.BODIES)
            # The folder of this system is another one than that of the backup.
            client.delete(keys.body_store)
            drop_stored_tokens(client, keys)
            database_part.load(place / folder.DATABASE)
            migrate_when_needed()
            ended, kept = self._end_unfinished(client, manifest.at)
        except (TangramError, OSError, redis.RedisError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"as of {manifest.at}: {manifest.database} and {count} keys of Redis; "
            f"{ended} unfinished actions are ended, {kept} replay-safe ones start again"
        )

    def _end_unfinished(self, client: redis.Redis, at: str) -> tuple[int, int]:
        """Send the loop the end of every unfinished action; return (ended, kept)."""
        keys = bus.keys()
        while client.eval(
            ADMIT_ALL, 2, keys.inbox, keys.arrivals
        ):  # they get their ends behind them
            pass
        recovered = recover(client, keys, load_managers().make_ledger, current_config())
        live = list(recovered.machine.state.actions.values())
        waiting = [found.action for found in live if found.state is ActionState.QUEUED]
        waiting += _submitted_after(client, recovered.inbox_id, recovered.inbox_part)
        granted = [found for found in live if found.state is not ActionState.QUEUED]
        reason = REASON.format(at=at)
        unsafe = [action for action in waiting if not action.replay_safe]
        events: list[ActionCancelRequested | ActionFinished] = []
        events += [_cancel(action, reason) for action in unsafe]
        events += [_lose(found, reason) for found in granted]
        for start in range(0, len(events), CHUNK):
            chunk = events[start : start + CHUNK]
            fields = {str(n): encode(event) for n, event in enumerate(chunk)}
            client.xadd(keys.inbox, fields)  # type: ignore[arg-type]
        lost = sum(not found.action.replay_safe for found in granted)
        return len(unsafe) + lost, len(waiting) + len(granted) - len(unsafe) - lost


def _check_key(key: str) -> None:
    """Raise InvalidRequest when the secrets of a backup could not be read after its restore."""
    if key and key not in key_ids():
        raise InvalidRequest(
            f"the secrets in this backup are encrypted under the key {key}, which this system does not"
            f" have. Copy the file secret_key of the system that was backed up to {key_place()}"
            " (mode 0600), or set TANGRAM_SECRET_KEY, or add it to TANGRAM_SECRET_KEY_FALLBACKS;"
            " --without-secrets restores everything else"
        )


def _submitted_after(
    client: redis.Redis, inbox_id: str, part: InboxPart | None
) -> Iterator[Action]:
    """Yield the actions that were accepted but not yet read by the loop."""
    entries = cast("list[Any]", client.xrange(bus.keys().inbox, f"({inbox_id}"))
    for entry_id, fields in entries:
        seen = part.messages if part is not None and part.entry_id == entry_id.decode() else 0
        for message in islice(fields.values(), seen, None):
            try:
                event = decode_command(message)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue  # the loop makes it a dead letter
            if isinstance(event, ActionSubmitted):
                yield event.action


def _cancel(action: Action, reason: str) -> ActionCancelRequested:
    return ActionCancelRequested(action_id=action.id, project=action.project, reason=reason)


def _lose(live: LiveAction, reason: str) -> ActionCancelRequested | ActionFinished:
    """Return the end of a run from before the restore, which its node does not know any more.

    The core queues the action again if it is replay-safe.
    """
    if live.node is None or live.lease_expires_at is not None:
        return _cancel(live.action, reason)
    return ActionFinished(
        action_id=live.action.id, node=live.node, outcome=Outcome.UNKNOWN,
        attempt=live.attempt, detail=reason,
    )  # fmt: skip
