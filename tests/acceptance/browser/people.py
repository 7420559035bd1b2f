"""People of each role, signed in once for a whole module."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect

from tests.acceptance.browser.pages import PATIENCE_MS
from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT

WORD: Final = "a long enough word"
DESK: Final[ViewportSize] = {"width": 1280, "height": 900}
#: Lowest first. Viewers and submitters are members of the default project; operators are staff, and
#: admins superusers, which makes them that in every project.
ROLES: Final = ("viewer", "submitter", "operator", "admin")

_MAKE_PEOPLE: Final = """
import sys
import django
django.setup()
from django.contrib.auth import get_user_model
from tangram_web.accounts.models import Membership
word, *names = sys.argv[1:]
for name in names:
    role = name.rpartition("-")[2]
    user, made = get_user_model().objects.get_or_create(
        username=name, is_staff=role in ("operator", "admin"), is_superuser=role == "admin"
    )
    if made:
        user.set_password(word)
        user.save()
        if role in ("viewer", "submitter"):
            Membership.objects.create(user=user, project_id="default", role=role)
"""


def make_people(tangram: Tangram, *names: str) -> None:
    """Make accounts; the last word of a name is its role."""
    environment = {
        **os.environ,
        "TANGRAM_HOME": str(tangram.home),
        "DJANGO_SETTINGS_MODULE": "tangram_web.settings",
    }
    command = [sys.executable, "-c", _MAKE_PEOPLE, WORD, *names]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def sign_in(context: BrowserContext, tangram: Tangram, name: str, path: str = "/login/") -> Page:
    """Sign in at the form, and return the page that follows."""
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(tangram.access["url"] + path)
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(WORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".who")).to_be_visible()
    return page


@contextmanager
def signed_in_people(
    browser: Browser, tangram: Tangram, names: Iterable[str]
) -> Iterator[dict[str, Page]]:
    """One signed-in page for each name; the last word of the name is the role."""
    make_people(tangram, *names)
    contexts = {name: browser.new_context(viewport=DESK) for name in names}
    yield {name: sign_in(context, tangram, name) for name, context in contexts.items()}
    for context in contexts.values():
        context.close()
