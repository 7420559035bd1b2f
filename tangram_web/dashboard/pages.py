"""Pages: one entry gives an address its view, template, readers and place in the side bar.

`tangram_web.site_map` lists all pages. URL patterns, the side bar, the keyboard help, the
guards and the page tests are derived from that list; no page is guarded or linked anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import URLResolver, include, path, reverse
from django.views.decorators.http import require_http_methods

from tangram_web.accounts.access import for_members
from tangram_web.dashboard.guards import for_viewers, for_watchers
from tangram_web.live.access import Sight

READS: Final = ("GET", "HEAD")
WRITES: Final = ("POST",)


class Access(StrEnum):
    """Readers of a page. Other readers get the login page or a refusal."""

    #: Every browser, signed in or not.
    PUBLIC = "public"
    #: Every account.
    SIGNED_IN = "signed in"
    #: Members of at least one project; the view checks their role in the project concerned.
    MEMBERS = "members"
    #: Members of at least one project; the view gets the projects that it may show (`Sight`).
    SIGHT = "sight"
    #: Staff and members of every project: the page shows all projects at once.
    ALL_PROJECTS = "all projects"


_GUARDS: Final[dict[Access, Callable[..., Callable[..., HttpResponse]]]] = {
    Access.PUBLIC: lambda view: view,
    Access.SIGNED_IN: login_required,
    Access.MEMBERS: for_members,
    Access.SIGHT: for_viewers,
    Access.ALL_PROJECTS: for_watchers,
}


class NavigationGroup(StrEnum):
    """Groups of the side bar, in its order; the first has no heading."""

    OVERVIEW = "Overview"
    WORK = "Work"
    RESOURCES = "Resources"
    UNDERSTAND = "Understand"
    MANAGE = "Manage"


@dataclass(frozen=True, kw_only=True)
class ConsolePage:
    """One address of the console."""

    #: ``app:name``, as `reverse` takes it.
    name: str
    #: Django path below the root, without a leading slash.
    path: str
    #: Returns the context of the template, or a whole response.
    view: Callable[..., Mapping[str, Any] | HttpResponseBase]
    access: Access
    #: Text of its link, and the start of the document title; empty when the view sets a title.
    title: str = ""
    #: One sentence under the title: the question that the page answers. Each page with a title has one.
    purpose: str = ""
    #: Rendered with the context that the view returns; empty when the view returns responses.
    template: str = ""
    #: Place in the side bar; None for a page that other pages link to.
    group: NavigationGroup | None = None
    #: Symbol of its link, an id in `frontend/icons.svg`.
    icon: str = "list"
    #: The page whose link is marked as current while this one is shown; its own when empty.
    section: str = ""
    #: Second key of the shortcut ``g`` + key.
    key: str = ""
    methods: tuple[str, ...] = READS
    #: Query string without which the page has nothing to show; page tests use it.
    query: str = ""

    def handler(self) -> Callable[..., HttpResponse]:
        """Return the view as Django calls it: methods checked, readers checked, rendered."""

        def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            found = self.view(request, *args, **kwargs)
            if isinstance(found, HttpResponseBase):
                return found
            return render(request, self.template, dict(found))

        return require_http_methods(self.methods)(_GUARDS[self.access](answer))


@dataclass(frozen=True)
class NavigationLink:
    """An entry of the side bar."""

    title: str
    address: str
    key: str
    icon: str
    current: bool


@dataclass(frozen=True)
class NavigationSection:
    """A group of the side bar with its links."""

    #: Empty for the first group.
    heading: str
    links: list[NavigationLink]


@dataclass(frozen=True)
class Navigation:
    """The side bar as one reader has it."""

    sections: list[NavigationSection]
    #: Title of the page, or of the page that leads to it; empty beside all of them.
    current: str


def url_patterns(pages: Iterable[ConsolePage]) -> list[URLResolver]:
    """Return the URL patterns of ``pages``, in a namespace for each app."""
    apps: dict[str, list[Any]] = {}
    for page in pages:
        app, _, name = page.name.partition(":")
        apps.setdefault(app, []).append(path(page.path, page.handler(), name=name))
    return [path("", include((patterns, app))) for app, patterns in apps.items()]


def navigation_of(pages: Iterable[ConsolePage], current: str, sight: Sight | None) -> Navigation:
    """Return the links of each group that a reader with ``sight`` may open.

    ``current`` is the name of the page that is shown.
    """
    known = list(pages)
    section = next((page.section or page.name for page in known if page.name == current), "")
    links: dict[NavigationGroup, list[NavigationLink]] = {group: [] for group in NavigationGroup}
    for page in known:
        hidden = page.access is Access.ALL_PROJECTS and (sight is None or not sight.everything)
        if page.group is not None and not hidden:
            links[page.group].append(
                NavigationLink(
                    page.title, reverse(page.name), page.key, page.icon, page.name == section
                )
            )
    return Navigation(
        [
            NavigationSection("" if group is NavigationGroup.OVERVIEW else group.value, found)
            for group, found in links.items()
            if found
        ],
        next((link.title for found in links.values() for link in found if link.current), ""),
    )
