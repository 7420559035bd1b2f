"""``manage.py plan``: decide a scheduling problem given as JSON, without a running system.

    python manage.py plan < problem.json
    python manage.py plan --policy "fixed(4)" < problem.json

Reads JSON on standard input and writes JSON on standard output (`tangram_web.management.plan_json`).
Bad input: one line on standard error that names the member, and exit code 2.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from domain.errors import InvalidRequest
from scheduler.core.planner import plan_grants
from scheduler.core.policies.registry import policy_forms, policy_named
from tangram_web.management.plan_json import parse_problem, plan_to_json


class Command(BaseCommand):
    """Decide one problem by the policy of a pool."""

    help = "Read a scheduling problem as JSON on standard input, write the decision as JSON."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the option for the policy."""
        parser.add_argument("--policy", default="paper", help=f"one of {', '.join(policy_forms())}")

    def handle(self, *args: Any, **options: Any) -> None:
        """Write the decision and its duration."""
        try:
            policy_named(options["policy"])  # before waiting for input
            problem, depth = parse_problem(sys.stdin.buffer.read())
        except InvalidRequest as error:
            where = f"{error.pointer}: " if error.pointer else ""
            self.stderr.write(" ".join(f"plan: {where}{error}".split()))
            sys.exit(2)
        policy = policy_named(options["policy"], depth=depth)
        began = time.perf_counter()
        plan = plan_grants(problem, policy)
        took = time.perf_counter() - began
        self.stdout.write(json.dumps({**plan_to_json(plan), "decision_us": round(took * 1e6)}))
