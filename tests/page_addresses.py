"""Addresses of the pages of the site map, with their parameters filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

from tangram_web.dashboard.pages import READS, ConsolePage
from tangram_web.site_map import DETAILS, NAVIGATION, PAGES

_PARAMETER = re.compile(r"<\w+:(\w+)>")
#: Pages that a browser opens by a link.
HTML_PAGES = [page for page in (*NAVIGATION, *DETAILS) if set(READS) <= set(page.methods)]
READ_PAGES = [page for page in PAGES if set(READS) <= set(page.methods)]


def parameters_of(page: ConsolePage) -> list[str]:
    """Return the names of the parameters in the path of ``page``."""
    return _PARAMETER.findall(page.path)


def address_of(page: ConsolePage, given: Mapping[str, str], query: str = "") -> str:
    """Return the address of ``page``; ``given`` has a value for each parameter of its path."""
    path = _PARAMETER.sub(lambda found: quote(given[found[1]], safe="/"), page.path)
    query = query or page.query
    return f"/{path}?{query}" if query else f"/{path}"
