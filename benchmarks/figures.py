"""Figures that several pages of the console show: read by their markup, and compared.

An element with ``data-figure`` shows a number that other pages show, too: the attribute is its name, as in ``waiting``.
The nearest ``data-scope`` names what it is about, as in ``pool/default``. The number is the first one of the text, or
``data-value`` where the text is a word. Where the figure is a link to the explorer, the list behind the link must have
as many rows: it is one more place of the figure.

Only where nothing changes do different numbers contradict each other: the reader stops the load first.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from playwright.sync_api import Page

READ: Final = """() => [...document.querySelectorAll("[data-figure]")].map(element => ({
  figure: element.dataset.figure,
  scope: element.closest("[data-scope]")?.dataset.scope ?? "",
  text: element.dataset.value ?? element.innerText,
  link: (element.closest("a") ?? element.querySelector("a"))?.getAttribute("href") ?? "",
}))"""
#: Lists whose rows are counted: their addresses, up to the query.
_LISTS: Final = ("/actions/?", "/trajectories/?", "/tasks/?", "/rollouts/?")
#: The number of rows of a list.
ROWS: Final = "rows"
_NUMBER: Final = re.compile(r"\d[\d,]*(\.\d+)?")
#: For the counts of a list, which are loaded after its rows, and the first frames of a live page.
PATIENCE_MS: Final = 60_000
SETTLED_MS: Final = 2500


class Fact(NamedTuple):
    """Name and scope of a figure."""

    figure: str
    scope: str


#: Fact → page that shows it → number.
Shown = dict[Fact, dict[str, float]]


def number_in(text: str) -> float | None:
    """Return the first number of a text; None without one, and where it is a lower bound (``10,000+``)."""
    found = _NUMBER.search(text)
    if found is None or text[found.end() :].startswith("+"):
        return None
    return float(found[0].replace(",", ""))


def add(shown: Shown, page: str, elements: Iterable[Mapping[str, str]]) -> dict[Fact, str]:
    """Add the figures of a page; return the lists that figures link to."""
    links = {}
    for element in elements:
        fact, number = Fact(element["figure"], element["scope"]), number_in(element["text"])
        if number is None:
            continue
        places = shown.setdefault(fact, {})
        # A page may show a figure twice; two numbers on one page contradict each other as well.
        known = page in places and places[page] != number
        places[f"{page} (again)" if known else page] = number
        if fact.figure != ROWS and element["link"].startswith(_LISTS):
            links[fact] = element["link"]
    return links


def contradictions(shown: Shown) -> Shown:
    """Return the facts of which places show different numbers."""
    return {fact: places for fact, places in shown.items() if len(set(places.values())) > 1}


def shared(shown: Shown) -> Shown:
    """Return the facts that at least two places show."""
    return {fact: places for fact, places in shown.items() if len(places) > 1}


def crawl(page: Page, base: str, addresses: Mapping[str, str]) -> Shown:
    """Read the figures of the pages, and count the rows of the lists that they link to."""
    shown: Shown = {}
    links: defaultdict[str, set[Fact]] = defaultdict(set)
    for name, address in addresses.items():
        for fact, link in add(shown, name, _figures(page, base + address)).items():
            links[link].add(fact)
    for link, facts in links.items():
        rows = [each for each in _figures(page, base + link) if each["figure"] == ROWS]
        number = number_in(rows[0]["text"]) if rows else None
        for fact in facts:
            if number is not None:
                shown[fact][f"list {link}"] = number
    return shown


def _figures(page: Page, address: str) -> list[dict[str, Any]]:
    """Open a page and return its figures once it has settled."""
    page.goto(address)
    if page.locator("#counts[data-counts]:not([data-counts=''])").count():
        page.wait_for_selector("#facets", state="attached", timeout=PATIENCE_MS)
    if page.locator("tg-live").count():
        # Figures of live pages come with frames: the slowest topic is published every 2 s.
        page.wait_for_timeout(SETTLED_MS)
    found: list[dict[str, Any]] = page.evaluate(READ)
    return found
