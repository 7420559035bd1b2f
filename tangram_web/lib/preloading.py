"""Preloading of URLs, views and templates in a new web process.

Django loads views with the first request that needs one, which delayed that request and those
behind it by 0.8 s. So a web process loads them in a thread as soon as it serves; ``/readyz`` reports
it ready once they are loaded.
"""

from __future__ import annotations

import logging
from importlib import import_module
from pathlib import Path
from typing import Final

from django.apps import apps
from django.template import Engine
from django.template.loader import get_template
from django.urls import get_resolver

log = logging.getLogger(__name__)

_OURS: Final = "tangram_web"


class PagePreloader:
    """The loading state of the pages of this process."""

    def __init__(self) -> None:
        self._problem = "the pages are being loaded"

    def check(self) -> dict[str, str]:
        """Return the check of ``/readyz``; its text is empty once the views are loaded."""
        return {"pages": self._problem}

    def load(self) -> None:
        """Load views and templates; an error is logged and leaves the process not ready."""
        try:
            load_views()
            load_templates()
        except Exception as error:
            log.exception("the pages cannot be loaded")
            self._problem = f"the pages cannot be loaded: {error!r}"
        else:
            self._problem = ""


def load_views() -> None:
    """Import every view and build the URL resolver's tables."""
    resolver = get_resolver()
    assert resolver.url_patterns
    assert resolver.reverse_dict is not None
    import_module("tangram_web.lib.api_problems")  # the REST framework does with the first error


def load_templates() -> None:
    """Load our templates into the loader's cache and import the context processors."""
    assert Engine.get_default().template_context_processors
    for app in apps.get_app_configs():
        if app.name.partition(".")[0] == _OURS:
            directory = Path(app.path, "templates")
            for path in sorted(directory.rglob("*.html")):
                get_template(str(path.relative_to(directory)))
