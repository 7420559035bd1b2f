"""Journals and snapshots that earlier versions wrote give the same decisions today."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from managers.registry import load
from scheduler.core.state import snapshot
from simulator.journal_replay import replay_journal
from simulator.workloads.recorded import read_journal
from tests.architecture.tree import ROOT

JOURNALS = sorted((ROOT / "tests" / "data").glob("*/*.jsonl.xz"))

pytestmark = pytest.mark.parametrize(
    "stored", JOURNALS, ids=lambda path: f"{path.parent.name}-{path.name}"
)


@pytest.fixture
def entries(stored: Path, tmp_path: Path):
    unpacked = tmp_path / "journal.jsonl"
    unpacked.write_bytes(lzma.decompress(stored.read_bytes()))
    return read_journal(unpacked)


def test_a_replayed_journal_gives_equal_decisions(entries):
    assert entries
    assert [each.entry.seq for each in replay_journal(entries) if not each.same] == []


def test_a_loaded_snapshot_continues_with_equal_decisions(entries, stored):
    state = lzma.decompress(
        stored.with_name(stored.name.replace(".jsonl", ".snapshot")).read_bytes()
    )
    machine = snapshot.load(state, load(()).make_ledger)

    differing = [
        entry.seq
        for entry in entries[len(entries) // 2 :]
        if machine.handle(*entry.events) != entry.decisions
    ]

    assert differing == []
    assert machine.state.now == entries[-1].at
