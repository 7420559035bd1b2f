"""What stays on units between actions is behind one seam: the rest of the core knows units alone."""

from __future__ import annotations

import re

import pytest

from tests.architecture.tree import ROOT

CORE = ROOT / "scheduler" / "core"
#: Words of the GPU services, in identifiers and in prose. A message for users may name them in `advice`.
_WORDS = re.compile("gpu|service", re.IGNORECASE)
_OUTSIDE = sorted(
    path
    for path in CORE.rglob("*.py")
    if path.relative_to(CORE).parts[0] not in {"residency", "policies", "advice"}
)


@pytest.mark.parametrize("path", _OUTSIDE, ids=lambda path: str(path.relative_to(CORE)))
def test_a_module_outside_residency_names_neither_gpu_nor_service(path):
    lines = path.read_text().splitlines()

    assert [f"{n}: {line}" for n, line in enumerate(lines, 1) if _WORDS.search(line)] == []


def test_only_the_registry_of_residency_is_imported_beside_its_policy():
    imported = re.compile(r"scheduler\.core\.residency(?:\.(\w+))?")
    found = {module for path in _OUTSIDE for module in imported.findall(path.read_text())}

    assert found <= {"policy", "registry"}
