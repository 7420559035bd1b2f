"""Selectors of parallelism, blocking. Generated from `_async_selectors`: change that one.

``python -m tests.architecture.sync_client`` writes this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tangram_client import _selector_calls
from tangram_client._selector_calls import ParallelismDecision
from tangram_client._sync_files import Sender
from tangram_client.models import Json


class SelectorCalls:
    """Selectors of parallelism; degrees are written as ``tp4``, ``tp4dp2`` or ``{"tp": 4}``."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def list(self) -> tuple[Json, ...]:
        """Return all selectors: what is in force for each stage, and why."""
        return self._sender.send(_selector_calls.selectors_list())

    def get(self, selector: str) -> Json:
        """Return a selector with its latest loads and switches. Raises NotFound."""
        return self._sender.send(_selector_calls.selector_of(selector))

    def profile(self, selector: str) -> Json:
        """Return the profile in use: identity, cells, switches. Raises NotFound, Conflict where there is none."""
        return self._sender.send(_selector_calls.selector_profile(selector))

    def put_profile(self, selector: str, profile: Mapping[str, Any]) -> None:
        """Add measured cells, or replace those of the same place; repeats change nothing. Raises NotFound."""
        self._sender.send(_selector_calls.put_selector_profile(selector, profile))

    def decision(
        self,
        selector: str,
        *,
        context: float,
        responses: int = 1,
        stage: str = "rollout",
        longest: float | None = None,
        queue: int | None = None,
        tokens: float | None = None,
        step: int | None = None,
        dry_run: bool = False,
    ) -> ParallelismDecision:
        """Return the degree of a stage that begins now; contexts are tokens of a response.

        The load is recorded, but for a dry run. Raises NotFound, Conflict without a profile, Invalid where no degree survives.
        """
        load = {
            "stage": stage, "context": context, "responses": responses, "longest": longest,
            "queue": queue, "tokens": tokens, "step": step, "dry_run": dry_run or None,
        }  # fmt: skip
        return self._sender.send(_selector_calls.selector_decision(selector, load))

    def observe(
        self,
        selector: str,
        *,
        context: float,
        responses: int = 1,
        context_p95: float | None = None,
        context_longest: float | None = None,
        queue: int | None = None,
        tokens: float | None = None,
        stage: str = "rollout",
        step: int | None = None,
    ) -> None:
        """Report the load of a step, from which the degree of the next one is chosen. Raises NotFound."""
        load = {
            "stage": stage, "context": context, "responses": responses, "context_p95": context_p95,
            "context_longest": context_longest, "queue": queue, "tokens": tokens, "step": step,
        }  # fmt: skip
        self._sender.send(_selector_calls.observe_load(selector, load))

    def pin(self, selector: str, degree: str | Mapping[str, int], *, force: bool = False) -> None:
        """Use one degree for all stages; ``force``: although it would run out of memory. Raises NotFound."""
        self._sender.send(_selector_calls.pin_degree(selector, degree, force))

    def unpin(self, selector: str) -> None:
        """Select the degree by the load again. Raises NotFound."""
        self._sender.send(_selector_calls.unpin_degree(selector))
