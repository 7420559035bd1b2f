"""Load what the first page of a fresh process would wait for: addresses, views, templates.

Django loads views with the first request that needs one, which took that request 0.8 s and, in a
list that is asked for often, everybody who came meanwhile. So a web process loads them in a thread
as soon as it serves; it answers from the start, and says that it is ready when they are there.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from django.apps import apps
from django.template import Engine
from django.template.loader import get_template
from django.urls import get_resolver

log = logging.getLogger(__name__)

_OURS: Final = "tangram_web"


class Pages:
    """Whether the views of this process are loaded."""

    def __init__(self) -> None:
        self._problem = "the pages are being loaded"

    def check(self) -> dict[str, str]:
        """Return what is wrong, as a check of ``/readyz``; empty when the views are there."""
        return {"pages": self._problem}

    def load(self) -> None:
        """Load everything; blocks, and raises nothing: what cannot be loaded stays not ready."""
        try:
            load_views()
            load_templates()
        except Exception as error:
            log.exception("the pages cannot be loaded")
            self._problem = f"the pages cannot be loaded: {error!r}"
        else:
            self._problem = ""


def load_views() -> None:
    """Import every view, and learn the addresses in both directions."""
    resolver = get_resolver()
    assert resolver.url_patterns
    assert resolver.reverse_dict is not None


def load_templates() -> None:
    """Read our own templates, which the loader keeps, and import what every page adds to them."""
    assert Engine.get_default().template_context_processors
    for app in apps.get_app_configs():
        if app.name.partition(".")[0] == _OURS:
            directory = Path(app.path, "templates")
            for path in sorted(directory.rglob("*.html")):
                get_template(str(path.relative_to(directory)))
