"""``manage.py plan``: decide a scheduling problem given as JSON, without a running system.

    python manage.py plan < problem.json
    python manage.py plan --policy "fixed(4)" < problem.json

Reads JSON on standard input and writes JSON on standard output (`scheduler.core.policies.wire`).
Bad input: one line on standard error that names the member, and exit code 2.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from domain.errors import InvalidRequest
from domain.policies import KNOWN_POLICIES
from scheduler.core.policies import policy_named
from scheduler.core.policies.plan import decide
from scheduler.core.policies.wire import parse_problem, plan_to_json


class Command(BaseCommand):
    """Decide one problem by the policy of a pool."""

    help = "Read a scheduling problem as JSON on standard input, write the decision as JSON."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the policy."""
        parser.add_argument("--policy", default="paper", help=f"one of {', '.join(KNOWN_POLICIES)}")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the decision and how long it took."""
        try:
            policy_named(options["policy"])  # before waiting for input
            problem, depth = parse_problem(sys.stdin.buffer.read())
        except InvalidRequest as error:
            where = f"{error.pointer}: " if error.pointer else ""
            self.stderr.write(" ".join(f"plan: {where}{error}".split()))
            sys.exit(2)
        policy = policy_named(options["policy"], depth=depth)
        began = time.perf_counter()
        plan = decide(problem, policy)
        took = time.perf_counter() - began
        self.stdout.write(json.dumps({**plan_to_json(plan), "decision_us": round(took * 1e6)}))
