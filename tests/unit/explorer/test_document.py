"""The document of the explorer lists the filters and orders that there are."""

from __future__ import annotations

import pytest

from tangram_web.explorer.fields import TABS, Tab
from tangram_web.explorer.listing import USUAL
from tangram_web.explorer.orders import orders_of
from tests.architecture.tree import ROOT


@pytest.mark.parametrize("tab", TABS.values(), ids=lambda tab: tab.name)
def test_filters_and_orders_are_documented(tab: Tab) -> None:
    whole = (ROOT / "docs" / "explorer.md").read_text()
    section = whole.partition(f"### {tab.title}\n")[2].partition("\n##")[0]

    listed = [line for line in section.splitlines() if line.startswith("| `")]
    assert [line.split("|")[1:4] for line in listed] == [
        [f" `{each.name}` ", f" {each.says} ", f" {each.kind} "] for each in tab.fields
    ]
    assert "Orders: " + ", ".join(f"`{each.name}`" for each in orders_of(tab)) + "." in section
    assert not USUAL[tab.name] or f"`{USUAL[tab.name]}`" in whole
