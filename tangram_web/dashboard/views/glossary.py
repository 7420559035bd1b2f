"""Glossary: the meaning of every term that the console uses."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from tangram_web.dashboard import glossary as terms


def glossary(_: HttpRequest) -> dict[str, Any]:
    """Show all terms by section."""
    return {"terms": terms.glossary()}
