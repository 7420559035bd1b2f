"""Audit after a round: it counts in the journal, on the disk and in the rows."""

from __future__ import annotations

import time
from collections import Counter

from domain.action import Outcome
from domain.codec import decode_config
from domain.decisions import Decision, Finish, Grant, Requeue
from domain.events import ActionSubmitted, Event
from domain.ids import trajectory_key
from managers.cpu.workspaces import safe_name
from managers.registry import load as load_managers
from scheduler.core.machine import Machine
from scheduler.core.state import invariants
from scheduler.runtime.redis.journal import START, Journal
from tests.faults.load import Load
from tests.faults.system import System

ROWS_WITHIN_SECONDS = 240.0


class Audit:
    """Follows the journal over all rounds with a machine of its own."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._position = START
        # The configuration of the first leader; later ones are in the journal.
        with system.client() as client:
            stored = client.get(system.keys.config)
        assert isinstance(stored, bytes)
        self._machine = Machine(load_managers().make_ledger, decode_config(stored))
        self.finishes: Counter[str] = Counter()
        self.grants: Counter[str] = Counter()
        self.given_back: Counter[str] = Counter()
        self.outcomes: dict[str, Outcome] = {}
        #: Invariant → how often it was checked; the first violation ends the audit.
        self.checked: Counter[str] = Counter()
        self._limits: dict[str, float | None] = {}

    def check(self, load: Load) -> None:
        """Raise AssertionError unless everything accepted in ``load`` ended once, and ran once."""
        self.replay()
        accepted = load.accepted.keys()
        self.checked["I1"] += len(accepted)
        lost = [action for action in accepted if self.finishes[action] == 0]
        assert not lost, f"lost {len(lost)}: {lost[:5]}"
        twice = [action for action, count in self.finishes.items() if count != 1]
        assert not twice, f"ended more than once: {twice[:5]}"
        reported = {a: o for a, o in load.outcomes.items() if self.outcomes[a] != o}
        assert not reported, f"trainers got another outcome than the journal has: {reported}"
        self._check_disk(load)
        self._check_rows(load)

    def replay(self) -> None:
        """I4 and I15's ground: capacity holds at every entry, and a replay decides the same."""
        with self._system.client() as client:
            for stream_id, entry in Journal(client, self._system.keys).after(self._position):
                decisions = self._machine.handle(*entry.events)
                assert decisions == entry.decisions, f"{stream_id} decides otherwise in a replay"
                invariants.check(self._machine.state)
                self.checked["I4"] += 1
                self._position = stream_id
                for event in entry.events:
                    self._take_event(event)
                for decision in decisions:
                    self._take_decision(decision)

    def _take_event(self, event: Event) -> None:
        if isinstance(event, ActionSubmitted):
            self._limits[event.action.id] = event.action.timeout_seconds

    def _take_decision(self, decision: Decision) -> None:
        if isinstance(decision, Finish):
            self.finishes[decision.action_id] += 1
            self.outcomes[decision.action_id] = decision.outcome
            self._check_end(decision)
        elif isinstance(decision, Grant):
            self.grants[decision.action_id] += 1
        elif isinstance(decision, Requeue):
            self.given_back[decision.action_id] += 1

    def _check_end(self, end: Finish) -> None:
        """I2 and I9: only what completed has a reward; a timeout counts execution alone."""
        self.checked["I2"] += 1
        assert end.reward is None or end.outcome is Outcome.COMPLETED, (
            f"{end.action_id} has a reward"
        )
        limit = self._limits.pop(end.action_id, None)
        if end.outcome is Outcome.TIMEOUT and limit is not None:
            self.checked["I9"] += 1
            ran = end.timing.execution_seconds
            assert ran >= 0.99 * limit, (
                f"{end.action_id} ran {ran:g} s of {limit:g} s and timed out"
            )

    def _check_disk(self, load: Load) -> None:
        """I3: nothing ran twice; what completed ran."""
        ran = self._lines_on_disk(load)
        self.checked["I3"] += len(load.accepted)
        again = {place: count for place, count in ran.items() if count > 1}
        assert not again, f"ran more than once: {again}"
        completed = {
            load.accepted[action]
            for action in load.accepted
            if self.outcomes[action] is Outcome.COMPLETED
        }
        missing = [place for place in completed if ran[place] != 1]
        assert not missing, f"completed without having run: {missing[:5]}"

    def _lines_on_disk(self, load: Load) -> Counter[tuple[str, int]]:
        nodes = self._system.home.path / "nodes"
        lines: Counter[tuple[str, int]] = Counter()
        for name in {name for name, _ in load.accepted.values()}:
            workspace = safe_name(trajectory_key("default", name))
            for file in nodes.glob(f"*/cpu/environments/{workspace}/layer/workspace/ran.*"):
                lines[name, int(file.suffix[1:])] += len(file.read_text().splitlines())
        return lines

    def _check_rows(self, load: Load) -> None:
        """Every accepted action has its row, finished as in the journal."""
        until = time.monotonic() + ROWS_WITHIN_SECONDS
        while time.monotonic() < until:
            rows = self._system.outcomes_in_rows()
            behind = [a for a in load.accepted if rows.get(a) != self.outcomes[a].value]
            if not behind:
                self.checked["rows"] += len(load.accepted)
                return
            time.sleep(0.1)
        raise AssertionError(f"{len(behind)} rows do not say it: {behind[:5]}")
