"""Finder: objects by the beginning of their names, and verbs on them, for the find field of every page.

Rules
1. ``hold`` finds objects; ``pause hold`` finds them with the verbs whose title or name begins with ``pause``.
2. A reader finds what pages show them: objects of their projects, and the capacity that all projects share.
3. A verb is offered to readers whose role its page admits (`views.require_role`); whether it applies now is for that page to say.
4. Names of rows that grow are searched by an index: a range of names within each project, or of ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from django.db.models import QuerySet
from django.http import HttpRequest, JsonResponse
from django.urls import reverse

from tangram_web.accounts.access import ORDER, role_everywhere, roles_of
from tangram_web.accounts.models import Role
from tangram_web.live.access import Sight
from tangram_web.operations.verb import Verb
from tangram_web.operations.verbs import VERBS
from tangram_web.pools.models import FleetRow, GpuServiceRow, Pool, Project, Resource, SelectorRow
from tangram_web.records.models import (
    ActionRecord,
    NodeRecord,
    RolloutRecord,
    TaskRecord,
    TrajectoryRecord,
)

#: Most objects of one kind, and answers in all.
EACH: Final = 6
MOST: Final = 24
#: Longest text that is searched for; projects whose names are searched.
LONGEST: Final = 200
PROJECTS: Final = 200


@dataclass(frozen=True)
class FoundObject:
    """An object of the console."""

    kind: str
    #: As verbs name it.
    name: str
    #: As people read it.
    title: str
    address: str
    #: Empty for objects that all projects share.
    project: str = ""


def find(request: HttpRequest, sight: Sight) -> JsonResponse:
    """Answer with the objects and verbs for ``?q=``, the best first."""
    text = request.GET.get("q", "").strip()[:LONGEST]
    first, _, rest = text.partition(" ")
    verbs = verbs_for(first)
    answers: list[dict[str, str]] = []
    if verbs and (rest.strip() or len(first) > 2):
        offered = offered_to(request.user)
        for each in objects(rest.strip(), sight, {verb.kind for verb in verbs}):
            answers += (answer_of(each, verb) for verb in verbs if offered(verb, each))
    if " " not in text:
        answers += (answer_of(each) for each in objects(text, sight))
    return JsonResponse({"found": answers[:MOST]})


def verbs_for(word: str) -> list[Verb]:
    """Return the verbs whose title or name begins with ``word``."""
    start = word.lower()
    if not start:
        return []
    return [
        verb
        for verb in VERBS.values()
        if verb.title.lower().startswith(start) or verb.name.startswith(start)
    ]


def offered_to(user: Any) -> Callable[[Verb, FoundObject], bool]:
    """Return whether a verb on an object is offered to ``user``; two queries for all of them."""
    everywhere, roles = role_everywhere(user), roles_of(user)

    def offered(verb: Verb, found: FoundObject) -> bool:
        role = roles.get(found.project) if found.project else everywhere
        return verb.kind == found.kind and role is not None and _reaches(role, verb.role)

    return offered


def answer_of(found: FoundObject, verb: Verb | None = None) -> dict[str, str]:
    """Return an object, or a verb on it, as the find field shows it."""
    note = f"{found.kind} of {found.project}" if found.project else found.kind
    if verb is None:
        return {"kind": found.kind, "title": found.title, "note": note, "href": found.address}
    address = reverse("operations:verb", args=[verb.kind, verb.name])
    return {
        "kind": "verb",
        "title": f"{verb.title}: {found.title}…",
        "note": note,
        "href": f"{address}?target={quote(found.name, safe='')}",
    }


def objects(text: str, sight: Sight, kinds: Iterable[str] = ()) -> Iterator[FoundObject]:
    """Yield the objects that ``sight`` may see and whose names begin with ``text``, of ``kinds`` or of all.

    Without a text there are only those of kinds that a person has declared.
    """
    wanted = set(kinds)
    if not text.isascii() or not text.isprintable():
        return  # no name has such a character
    for kind, search in {**_DECLARED, **(_GROWING if text else {})}.items():
        if not wanted or kind in wanted:
            yield from search(text, sight)


def _tasks(text: str, sight: Sight) -> Iterator[FoundObject]:
    for row in _named(TaskRecord.objects.only("key", "name", "project"), text, sight):
        yield FoundObject(
            "task", row.key, row.name, reverse("dashboard:task", args=[row.key]), row.project
        )


def _trajectories(text: str, sight: Sight) -> Iterator[FoundObject]:
    for row in _named(TrajectoryRecord.objects.only("key", "name", "project"), text, sight):
        address = reverse("dashboard:trajectory", args=[row.key])
        yield FoundObject("trajectory", row.key, row.name, address, row.project)


def _actions(text: str, sight: Sight) -> Iterator[FoundObject]:
    rows = sight.of(ActionRecord.objects.only("id", "project"))
    for row in _beginning(rows, "id", text) if text.startswith("act_") else ():
        yield FoundObject(
            "action", row.id, row.id, reverse("dashboard:action", args=[row.id]), row.project
        )


def _rollouts(text: str, sight: Sight) -> Iterator[FoundObject]:
    rows = sight.of(RolloutRecord.objects.only("id", "project"))
    for row in _beginning(rows, "id", text) if text.startswith("rol_") else ():
        yield FoundObject(
            "rollout", row.id, row.id, reverse("rollouts:one", args=[row.id]), row.project
        )


def _declared(
    kind: str, model: Any, address: Callable[[str, Sight], str]
) -> Callable[[str, Sight], Iterator[FoundObject]]:
    def search(text: str, sight: Sight) -> Iterator[FoundObject]:
        rows = model.objects.filter(name__icontains=text) if text else model.objects
        for name in rows.order_by("name").values_list("name", flat=True)[:EACH]:
            yield FoundObject(kind, name, name, address(name, sight))

    return search


def _page(name: str, others: str = "") -> Callable[[str, Sight], str]:
    """Return the address of a page; of another one for readers of some projects."""
    return lambda _, sight: reverse(name if sight.everything or not others else others)


def _named(rows: QuerySet[Any], text: str, sight: Sight) -> Iterable[Any]:
    project, slash, name = text.partition("/")
    if slash:
        return _beginning(sight.of(rows).filter(project=project), "name", name) if name else ()
    projects = sight.projects
    if projects is None:
        projects = tuple(Project.objects.values_list("name", flat=True)[:PROJECTS])
    return _beginning(rows.filter(project__in=projects), "name", text)


def _beginning(rows: QuerySet[Any], field: str, text: str) -> Iterable[Any]:
    """Return rows whose ``field`` begins with ``text``; the range is what an index serves."""
    after = text[:-1] + chr(ord(text[-1]) + 1)
    bounds = {f"{field}__gte": text, f"{field}__lt": after, f"{field}__startswith": text}
    return rows.filter(**bounds).order_by(field)[:EACH]


def _reaches(role: Role, least: Role) -> bool:
    return ORDER.index(role) >= ORDER.index(least)


_DECLARED: Final[dict[str, Callable[[str, Sight], Iterator[FoundObject]]]] = {
    "pool": _declared("pool", Pool, _page("operations:operate", "configuration:overview")),
    "node": _declared("node", NodeRecord, _page("dashboard:workers", "dashboard:cpu")),
    "service": _declared("service", GpuServiceRow, _page("dashboard:gpu")),
    "resource": _declared("resource", Resource, _page("dashboard:apis")),
    "fleet": _declared("fleet", FleetRow, lambda name, _: reverse("fleets:one", args=[name])),
    "selector": _declared(
        "selector", SelectorRow, lambda name, _: reverse("parallelism:one", args=[name])
    ),
}
_GROWING: Final[dict[str, Callable[[str, Sight], Iterator[FoundObject]]]] = {
    "task": _tasks,
    "trajectory": _trajectories,
    "rollout": _rollouts,
    "action": _actions,
}
