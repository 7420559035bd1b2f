"""Agreement of the ranks on an exchange before a byte of a tensor leaves: dtypes, layouts, plan, options.

A rank describes what it is about to do in short values with digests. The ranks' descriptions are compared with the one of the lowest rank,
tensor by tensor first, so that an error names a tensor wherever one tensor differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from dispatcher.errors import LayoutError
from dispatcher.layout import Layout
from dispatcher.mesh import AXES
from dispatcher.placements import Owned, Ragged, Replicate
from dispatcher.transfer_plan import TransferPlan
from dispatcher.transport.errors import DispatchError, Mismatch

#: What a description says of all tensors together.
PLAN = "plan"
OPTIONS = "options"
#: Of how many characters a layout is shown beside its digest.
_SHOWN = 120


def describe(
    plan: TransferPlan, rank: int, arrays: Mapping[str, Any], options: str
) -> dict[str, str]:
    """Return what a rank is about to do, by tensor; where its arrays are not what the layout says, that."""
    found = {
        name: f"{_of_tensor(plan.source, name)} to {_of_tensor(plan.target, name)}"
        for name in sorted({*plan.source.tensors, *plan.target.tensors})
    }
    if rank in plan.source.mesh.ranks:
        try:
            plan.source.check(rank, arrays)
        except LayoutError as error:
            found[error.field.partition(".")[0]] = str(error)
    return {**found, PLAN: plan.digest[:16], OPTIONS: options}


def compare(described: Mapping[int, Mapping[str, str]]) -> None:
    """Raise `Mismatch` for the first rank and tensor that differ from the lowest rank's."""
    ranks = sorted(described)
    first = described[ranks[0]]
    for tensor in [*sorted({*first} - {PLAN, OPTIONS}), OPTIONS, PLAN]:
        for rank in ranks[1:]:
            ours, theirs = first.get(tensor, "absent"), described[rank].get(tensor, "absent")
            if ours != theirs:
                raise Mismatch(rank, tensor, ours, theirs, ranks[0])
    for rank in ranks[1:]:
        more = sorted({*described[rank]} - {*first})
        if more:
            raise Mismatch(rank, more[0], "absent", described[rank][more[0]], ranks[0])


def judge(votes: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Compare what the ranks are about to do; other rounds end as they are."""
    described = {rank: vote["about"] for rank, vote in votes.items() if "about" in vote}
    if described and len(described) < len(votes):
        raise DispatchError("some ranks begin an exchange while others end one")
    if described:
        compare(described)
    return {}


def _of_tensor(layout: Layout, name: str) -> str:
    """Return dtype, shape and placements in short, and a digest of them in full, with the ranks."""
    spec = layout.tensors.get(name)
    if spec is None:
        return "absent"
    digest = hashlib.sha256(repr((layout.mesh.sizes, layout.mesh.ranks)).encode())
    if isinstance(spec.shape, Ragged):
        digest.update(spec.shape.lengths.tobytes())
    placements = []
    for axis, placement in zip(AXES, spec.placements, strict=True):
        if isinstance(placement, Owned):
            digest.update(placement.owners.tobytes())
        if not isinstance(placement, Replicate):
            placements.append(f"{axis} {placement!r}")
    shape = (
        f"{spec.shape!r} inner {spec.shape.inner}" if isinstance(spec.shape, Ragged) else spec.shape
    )
    short = f"{spec.dtype.name} {shape} {', '.join(placements) or 'replicated'}"
    digest.update(short.encode())
    return f"{short[:_SHOWN]} #{digest.hexdigest()[:12]}"
