"""Owners of rows: which ranks of a trainer own which rollouts, by the layout of a request. Pure.

    {"ranks": 4}                                        balanced by tokens
    {"ranks": 4, "owners": {"rol_…": 0, …}}             as stated
    {"mesh": {"dp": 2, "tp": 2, "ranks": [4, 5, 6, 7]}} balanced over dp; the ranks of one dp coordinate own the same rows
    {"mesh": {…}, "owners": {"rol_…": 0, …}}            the dp coordinate of each rollout, as stated
    {"mesh": {…}, "tensors": […]}                       `dispatcher.layout.Layout.description()`: sample i is rollout i of the request

Rules
1. The segments of a rollout have the same owner.
2. Balanced: the longest rollout first, each to the owner with the fewest tokens; equal ones to the lower number. The result is a
   function of the lengths alone.
3. Of a layout of the dispatcher the samples of its first ragged tensor count, else of its first one; their lengths do not, since a
   trainer has them from the manifest. A rank that holds a part of a sample owns the whole rollout; a sample that none holds is none's.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from math import prod
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from contract.batch_requests import MAX_BATCH_ROLLOUTS, MAX_RANKS
from domain.errors import InvalidRequest

_Size = Annotated[int, Meta(ge=1, le=MAX_RANKS)]
_Rank = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_MESH: Final = ("dp", "pp", "cp", "tp")


class _MeshRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A mesh of ranks, row-major over its axes, as the dispatcher has it."""

    dp: _Size = 1
    pp: _Size = 1
    cp: _Size = 1
    tp: _Size = 1
    ranks: list[_Rank] | None = None


class _LayoutRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Layout of a request: a number of ranks, or a mesh."""

    ranks: _Size | None = None
    mesh: _MeshRequest | None = None
    owners: dict[str, _Rank] | None = None


class AskedOwners(NamedTuple):
    """The owners of a layout, before the rollouts are known."""

    #: Ranks that own the same rows.
    groups: list[list[int]]
    #: Rollout → its group, where the request states it.
    stated: dict[str, int] | None = None
    #: Rank → places of its rollouts in the request, where a layout of the dispatcher states them.
    described: dict[int, list[int]] | None = None
    #: Of that layout.
    samples: int = 0


def asked_owners(layout: Mapping[str, Any]) -> AskedOwners:
    """Return the owners of a layout. Raises InvalidRequest, which names the member."""
    if "tensors" in layout:
        return _described(layout)
    try:
        asked = msgspec.convert(layout, _LayoutRequest)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"layout: {error}", pointer="/layout") from None
    if (asked.ranks is None) == (asked.mesh is None):
        raise InvalidRequest(
            'a layout has either ranks, as in {"ranks": 4}, or a mesh, as in {"mesh": {"dp": 2, "tp": 2}}',
            pointer="/layout",
        )
    if asked.ranks is not None:
        groups = [[rank] for rank in range(asked.ranks)]
    else:
        assert asked.mesh is not None
        groups = _groups_of(asked.mesh)
    for rollout, owner in (asked.owners or {}).items():
        if owner >= len(groups):
            raise InvalidRequest(
                f"{rollout} has owner {owner}; the layout has the owners 0 to {len(groups) - 1}",
                pointer=f"/layout/owners/{rollout}",
            )
    return AskedOwners(groups, asked.owners)


def owned_rollouts(
    asked: AskedOwners, requested: Sequence[str], tokens: Mapping[str, int]
) -> dict[int, set[str]]:
    """Return the rollouts of each rank; ``tokens``: of the rollouts that train. Raises InvalidRequest."""
    if asked.described is not None:
        if asked.samples != len(requested):
            raise InvalidRequest(
                f"the layout has {asked.samples} samples, and the request {len(requested)} rollouts:"
                " describe one sample for each rollout",
                pointer="/layout/tensors",
            )
        return {
            rank: {requested[place] for place in places} & tokens.keys()
            for rank, places in asked.described.items()
        }
    owner_of = asked.stated
    if owner_of is None:
        owner_of = _balanced(tokens, len(asked.groups))
    elif missing := [rollout for rollout in tokens if rollout not in owner_of]:
        raise InvalidRequest(
            f"owners has no rank for {missing[0]}: name one for each rollout, or leave out owners",
            pointer="/layout/owners",
        )
    return {
        rank: {rollout for rollout in tokens if owner_of[rollout] == number}
        for number, ranks in enumerate(asked.groups)
        for rank in ranks
    }


def _described(layout: Mapping[str, Any]) -> AskedOwners:
    """Return the owners of a layout of the dispatcher. Raises InvalidRequest."""
    # Numpy takes 20 MiB and 0.1 s, which a web process without such layouts need not spend.
    from dispatcher.layout import Layout, LayoutError, Ragged

    try:
        found = Layout.from_description(dict(layout))
        if len(found.mesh.ranks) > MAX_RANKS or not found.tensors:
            raise LayoutError("tensors", f"give a tensor, over at most {MAX_RANKS} ranks")
        ragged = [name for name, t in found.tensors.items() if isinstance(t.shape, Ragged)]
        name = next(iter([*ragged, *found.tensors]))
        shape, samples = found.tensors[name].shape, found.tensors[name].samples
        # A description of a few bytes may have any number of samples, and the list of places is as long.
        if samples > MAX_BATCH_ROLLOUTS:
            raise LayoutError(
                name, f"has {samples} samples; a batch has at most {MAX_BATCH_ROLLOUTS} rollouts"
            )
        places = {rank: found.samples(name, rank).tolist() for rank in found.mesh.ranks}
    except (LayoutError, TypeError, ValueError) as error:
        raise InvalidRequest(f"layout: {error}", pointer="/layout") from None
    return AskedOwners([], described=places, samples=samples if shape != () else 0)


def _groups_of(mesh: _MeshRequest) -> list[list[int]]:
    """Return the ranks of each dp coordinate."""
    sizes = [getattr(mesh, name) for name in _MESH]
    count = prod(sizes)
    ranks: Sequence[int] = range(count) if mesh.ranks is None else mesh.ranks
    if count > MAX_RANKS or len(ranks) != count or len(set(ranks)) != count:
        raise InvalidRequest(
            f"a mesh of {' × '.join(map(str, sizes))} has {count} ranks: name as many different ones, at most {MAX_RANKS}",
            pointer="/layout/mesh/ranks",
        )
    same = count // mesh.dp
    return [list(ranks[at : at + same]) for at in range(0, count, same)]


def _balanced(tokens: Mapping[str, int], owners: int) -> dict[str, int]:
    heap = [(0, owner) for owner in range(owners)]
    found: dict[str, int] = {}
    for rollout, count in sorted(tokens.items(), key=lambda each: (-each[1], each[0])):
        used, owner = heap[0]
        heapq.heapreplace(heap, (used + count, owner))
        found[rollout] = owner
    return found
