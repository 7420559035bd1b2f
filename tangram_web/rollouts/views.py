"""Pages of rollouts: the list by stage, one rollout, groups of samples, backends, and files of a rollout's log."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.http import content_disposition_header

from domain.errors import NotFound, TangramError
from domain.fleets import fleet_name
from domain.rollouts import RolloutState, Stage, StageTimes
from rollout.core.stage_machine import MAX_EVALUATIONS, MAX_PREPARATIONS, trajectory_of
from tangram_web.accounts.access import included_roles, role_everywhere, roles_of
from tangram_web.accounts.models import Role
from tangram_web.dashboard.guards import refuse
from tangram_web.dashboard.scheduler_selectors import asked, queues_seen_by, why_waiting
from tangram_web.explorer.fields import ROLLOUTS
from tangram_web.explorer.language import Query
from tangram_web.explorer.values import Sign
from tangram_web.explorer.views import show
from tangram_web.lib import scheduler_client
from tangram_web.live.access import Sight
from tangram_web.records.models import ActionRecord, RolloutRecord, TrajectoryRecord
from tangram_web.records.rollout_selectors import view_of_rollout
from tangram_web.rollouts import rollout_lists
from tangram_web.rollouts.backend_pools import knows_addresses, pools_seen_by
from tangram_web.rollouts.drawings import shown_artefacts, stage_rows, token_strip, turn_strip
from tangram_web.rollouts.groups import group_of_rollout, group_page
from tangram_web.rollouts.log_digest import TURNS, LogDigest
from tangram_web.rollouts.log_reader import artefact_of, content_of, digest_of, record_of
from tangram_web.rollouts.verdicts import cure_of

#: Filters that select lanes, and those of time: a lane has all its rollouts.
_OF_LANES: Final = ("lane", "state", "outcome", "since", "until")
_NO_ROLLOUT: Final = (
    "It may be older than the retention, or of a project that you are no member of."
)


def rollouts(request: HttpRequest, sight: Sight) -> dict[str, Any] | HttpResponse:
    """Show the lanes of rollouts, and one page of the list."""
    shown = show(request, sight, ROLLOUTS)
    if isinstance(shown, HttpResponse):
        return shown
    query: Query = shown["found"].query
    lanes = rollout_lists.lanes(sight, _filters_in(query))
    status, problem = rollout_lists.explain(sight, lanes)
    kept = " ".join(str(term) for term in query.terms if term.field.name not in _OF_LANES)
    return {
        **shown,
        "lanes": lanes,
        "live": sum(lane.count for lane in lanes if lane.name != "finished"),
        "status": status,
        "problem": problem,
        "kept": f" {kept}" if kept else "",
    }


def _filters_in(query: Query) -> dict[str, str]:
    """Return the whole values that lanes are filtered by: a field with one of them."""
    return {
        term.field.name: term.values[0].text
        for term in query.terms
        if term.field.name in rollout_lists.FILTERS
        and not term.negated
        and len(term.values) == 1
        and term.values[0].sign is Sign.IS
    }


def rollout(request: HttpRequest, sight: Sight, rollout_id: str) -> dict[str, Any] | HttpResponse:
    """Show one rollout from its row and its log; ask the scheduler while it is live."""
    record = rollout_lists.rollout_record(sight, rollout_id)
    if record is None:
        return refuse(request, "No such rollout", _NO_ROLLOUT, 404)
    first = _first_turn(request, record)
    log = digest_of(record.id, first)
    digest = log.digest or LogDigest()
    waiting, problem = _waiting(sight, record)
    stages = stage_rows(record, _times(record, digest), timezone.now())
    raw = msgspec.json.format(msgspec.json.encode(view_of_rollout(record)), indent=2).decode()
    return {
        "rollout": record,
        "log": log,
        "digest": digest,
        "stages": stages,
        "strip": token_strip(digest.turns),
        "window": [(turn, turn_strip(turn)) for turn in digest.window],
        "turns": _turn_links(first, len(digest.turns)),
        "sampled": sum(turn.sampled for turn in digest.turns),
        "context": sum(turn.context for turn in digest.turns),
        "request_shown": list(digest.request.items()),
        "detail": list(digest.detail.items()),
        "artefacts": shown_artefacts(digest.artefacts),
        "tests": digest.tests,
        "trajectories": _trajectories(record),
        "attempts": _attempts(record),
        "group": group_of_rollout(sight, record),
        "waiting": waiting,
        "problem": problem,
        "cure": cure_of(record),
        "raw": raw,
        "names_backends": _names_backends(sight, record),
        "fleet": fleet_name(record.llm),
        "powers": included_roles(request.user, record.project),
    }


def _names_backends(sight: Sight, record: RolloutRecord) -> bool:
    """Say whether a reader may know where turns were sampled; names of a fleet's workers are declared, and no addresses."""
    return fleet_name(record.llm) is not None or knows_addresses(sight, record.llm)


def record_file(request: HttpRequest, sight: Sight, rollout_id: str, number: int) -> HttpResponse:
    """Return a whole record of a rollout's log as JSON; with ``?content``, the bytes of the artefact in it."""
    if "content" in request.GET:
        filename = f"{rollout_id}-{number}.bin"
        return _file(request, sight, rollout_id, filename, lambda _: content_of(rollout_id, number))

    def content(record: RolloutRecord) -> bytes:
        found = record_of(rollout_id, number)
        if not _names_backends(sight, record):
            found["header"].pop("backend", None)
        return msgspec.json.format(msgspec.json.encode(found), indent=2)

    filename = f"{rollout_id}-{number}.json"
    return _file(request, sight, rollout_id, filename, content, "application/json")


def artefact_file(request: HttpRequest, sight: Sight, rollout_id: str, name: str) -> HttpResponse:
    """Return the bytes of an artefact."""
    filename = name.rpartition("/")[2] or "artefact"
    return _file(request, sight, rollout_id, filename, lambda _: artefact_of(rollout_id, name))


def groups(request: HttpRequest, sight: Sight) -> dict[str, Any]:
    """Show groups of samples, newest first."""
    return {"found": group_page(sight, request.GET)}


def backends(request: HttpRequest, sight: Sight) -> dict[str, Any]:
    """Show the pools of backends as the scheduler has them now."""
    status, problem = asked(lambda: scheduler_client.rollouts(backends=("*",), limit=0))
    queues = None
    if status is not None:
        queues, _ = asked(lambda: queues_seen_by(sight))
    everywhere = role_everywhere(request.user) is not None
    operated = [] if everywhere else list(roles_of(request.user, Role.OPERATOR))

    def operates(owner: str) -> bool:
        return everywhere or owner in operated

    return {
        "problem": problem,
        "pools": [] if status is None else pools_seen_by(sight, status, queues, operates),
        "operator": everywhere,
        "operated": operated,
    }


def _file(
    request: HttpRequest,
    sight: Sight,
    rollout_id: str,
    filename: str,
    content: Callable[[RolloutRecord], bytes],
    content_type: str = "application/octet-stream",
) -> HttpResponse:
    record = rollout_lists.rollout_record(sight, rollout_id)
    if record is None:
        return refuse(request, "No such rollout", _NO_ROLLOUT, 404)
    try:
        answer = HttpResponse(content(record), content_type=content_type)
    except NotFound as error:
        return refuse(request, "No such file", f"{error}.", 404)
    except (TangramError, OSError) as error:
        return refuse(request, "The log cannot be read", f"{error}.", 503)
    header = content_disposition_header(as_attachment=True, filename=filename)
    answer.headers["Content-Disposition"] = header or "attachment"
    answer.headers["Cache-Control"] = "no-store"
    return answer


def _first_turn(request: HttpRequest, record: RolloutRecord) -> int:
    """Return the first turn of the page: of the query, else of the last page while the rollout runs."""
    asked_for = request.GET.get("turn", "")
    if asked_for.isascii() and asked_for.isdigit() and len(asked_for) < 9:
        return int(asked_for) // TURNS * TURNS
    running = record.state != RolloutState.FINISHED
    return max(0, record.turns - 1) // TURNS * TURNS if running else 0


def _turn_links(first: int, count: int) -> dict[str, Any]:
    """Return which turns are shown, and the first turns of the pages beside."""
    return {
        "first": first,
        "last": min(count, first + TURNS) - 1,
        "count": count,
        "earlier": first - TURNS if first else None,
        "later": first + TURNS if first + TURNS < count else None,
    }


def _times(record: RolloutRecord, digest: LogDigest) -> tuple[StageTimes, ...]:
    """Return the times of the row, which has them at the end; until then those of the log."""
    stored = msgspec.convert(record.times or [], tuple[StageTimes, ...])
    return stored or digest.times()


def _waiting(sight: Sight, record: RolloutRecord) -> tuple[str, str]:
    """Return why a live rollout waits, and why the scheduler did not answer."""
    if record.state == RolloutState.PARKED:
        why = f" ({record.reason})" if record.reason else ""
        return f"It is parked{why} until it is resumed.", ""
    if record.state == RolloutState.WAITING:
        status, problem = rollout_lists.present_status(record)
        if status is None or not status.waiting:
            return "", problem
        before = f"; {status.position} are assigned before it" if status.position else ""
        return f"It waits for a rollout worker: {status.waiting}{before}.", problem
    if record.state == RolloutState.FINISHED or not record.queued:
        return "", ""
    lease = _queued_lease(record)
    details, problem = (None, "") if lease is None else why_waiting(sight, lease)
    stage = (record.stage or "").upper()
    why = f": {details.reason}" if details is not None else ""
    return f"{stage} waits for its lease{why}.", problem


def _queued_lease(record: RolloutRecord) -> ActionRecord | None:
    rows = ActionRecord.objects.filter(
        project=record.project, trajectory=record.id, kind="lease", finished_seq__isnull=True
    )
    return rows.defer("result", "spec", "metadata").order_by("-id").first()


def _attempts(record: RolloutRecord) -> list[dict[str, Any]]:
    """Return the assignments of a rollout with their times, the latest first."""
    return [
        {**each, **{name: _instant(each[name]) for name in ("at", "until") if name in each}}
        for each in reversed(record.attempts)
    ]


def _instant(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _trajectories(record: RolloutRecord) -> list[dict[str, Any]]:
    """Return the trajectories of the rollout's stages that exist."""
    names = {
        f"{record.project}/{trajectory_of(record.id, generation, stage, evaluation)}": (
            stage,
            generation + evaluation,
        )
        for generation in range(MAX_PREPARATIONS)
        for stage in Stage
        for evaluation in range(MAX_EVALUATIONS if stage is Stage.EVAL else 1)
    }
    rows = TrajectoryRecord.objects.filter(key__in=names).order_by("opened_at", "key")
    return [
        {"record": row, "stage": names[row.key][0].upper(), "generation": names[row.key][1]}
        for row in rows.defer("environment", "metadata")
    ]
