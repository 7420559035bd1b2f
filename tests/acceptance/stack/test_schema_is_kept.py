"""Schemathesis over the whole schema: no 5xx, and no status that the schema does not name.

As an administrator, as a member of another project, and without a token. The campaign of `--long` sends
more than 10,000 requests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT
from tests.tiers import by_tier

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

#: Phases of every run: examples of the document, and the limits of each field.
COVERAGE = "examples,coverage"
EXAMPLES = by_tier(2, 2, 60)
#: Fewer would not be a campaign.
LEAST_REQUESTS = by_tier(100, 500, 3400)
_MEMBER = """
import django
django.setup()
from domain.principals import Scope
from tangram_web.audit.services import SYSTEM
from tangram_web.pools.models import Project
from tangram_web.pools.services import project_create
from tangram_web.pools.tokens import token_create
if not Project.objects.filter(name="fuzzed").exists():
    project_create(actor=SYSTEM, name="fuzzed")
scopes = [Scope.READ, Scope.SUBMIT, Scope.OPERATE]
print(token_create(actor=SYSTEM, name="fuzzer", scopes=scopes, project="fuzzed")[1])
"""


@pytest.fixture(scope="module")
def member_token(tangram: Tangram) -> str:
    """A token of a project that owns nothing."""
    made = subprocess.run(
        [sys.executable, "-c", _MEMBER],
        cwd=ROOT,
        env={
            **os.environ,
            "TANGRAM_HOME": str(tangram.home),
            "DJANGO_SETTINGS_MODULE": "tangram_web.settings",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout.strip()


@pytest.mark.parametrize(
    "caller", ["administrator", "member", pytest.param("anonymous", marks=pytest.mark.long)]
)
def test_no_request_makes_a_server_error_or_an_unknown_status(
    tangram: Tangram, admin_token: str, member_token: str, caller: str, tmp_path: Path
):
    token = {"administrator": admin_token, "member": member_token}.get(caller)
    phases = by_tier(COVERAGE, COVERAGE, f"{COVERAGE},fuzzing")
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run"),
        tangram.access["url"] + "/api/v1/openapi.json",
        *("--checks", "not_a_server_error,status_code_conformance"),
        *(
            "--phases",
            phases,
            "--max-examples",
            str(EXAMPLES),
            "--seed",
            "1",
        ),
        *("--exclude-path", "/api/v1/events"),  # it never ends, by design
        *(("-H", f"Authorization: Bearer {token}") if token else ()),
        *("--request-timeout", "150", "--no-color"),
        *("--report", "ndjson", "--report-ndjson-path", str(tmp_path / "events")),
    ]
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "tests.acceptance.stack.fuzz_hooks",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    sent = re.search(r"(\d[\d,]*) generated", done.stdout)
    assert sent is not None, done.stdout[-3000:]
    assert int(sent[1].replace(",", "")) >= LEAST_REQUESTS
