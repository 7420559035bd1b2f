"""Environments by node agree with a plain list of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from domain.ids import TrajectoryKey
from tangram_web.live.placed_environments import PlacedEnvironments

KEYS = st.sampled_from([TrajectoryKey(f"lab/t{number}") for number in range(4)])
NODES = st.sampled_from(["n1", "n2"])
PLACED = st.tuples(st.just("place"), KEYS, NODES, st.integers(0, 8))
MOVED = st.tuples(st.just("move"), KEYS, NODES)
REMOVED = st.tuples(st.just("remove"), KEYS)
FORGOTTEN = st.tuples(st.just("forget_node"), NODES)


@given(st.lists(st.one_of(PLACED, MOVED, REMOVED, FORGOTTEN)))
def test_each_node_has_what_was_placed_there_first_and_not_removed(changes):
    environments = PlacedEnvironments()
    model: dict[str, tuple[str, int]] = {}
    for verb, *arguments in changes:
        getattr(environments, verb)(*arguments)
        if verb == "place":
            model.setdefault(arguments[0], (arguments[1], arguments[2]))
        elif verb == "move" and arguments[0] in model:
            model[arguments[0]] = (arguments[1], model[arguments[0]][1])
        elif verb == "remove":
            model.pop(arguments[0], None)
        elif verb == "forget_node":
            model = {key: held for key, held in model.items() if held[0] != arguments[0]}
    for view in (environments, environments.of_project("lab")):
        for node in ("n1", "n2"):
            there = [memory for name, memory in model.values() if name == node]
            assert (view.on(node), view.reserved_bytes(node)) == (len(there), sum(there))
    assert environments.of_project("other").on("n1") == 0
