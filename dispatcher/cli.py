"""Command line: what a transfer would cost, without one.

    tangram dispatch plan FILE        bytes by pair, busiest endpoint and predicted seconds, beside gather-scatter
    tangram dispatch plan --table1    how batches grow with the context (EARL, Table 1)

FILE is JSON: ``{"source": LAYOUT, "target": LAYOUT, "hosts": {"0": "a", …}, "lost": [3]}``, the last two optional; a layout is described as in `dispatcher.layout`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dispatcher.cost import Links, choose, context_bytes, gather_scatter_bytes, predict
from dispatcher.errors import LayoutError, PlanError
from dispatcher.layout import Layout
from dispatcher.placements import integers
from dispatcher.plan import TransferPlan, plan_transfer

_GBIT: Final = 1e9 / 8
_MIB: Final = 2**20
_GPUS_PER_HOST: Final = 8
_FIELDS: Final = ("source", "target", "hosts", "lost")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 2 where the file is wrong."""
    options = _parser().parse_args(arguments)
    try:
        links = Links(bandwidth=options.bandwidth * _GBIT, latency=options.latency / 1e6)
        if options.table1:
            lines: Iterator[str] = _table_1(options.gpus, links)
        else:
            plan = _planned(_loaded(options.file))
            if options.json:
                lines = iter([json.dumps(summary(plan, links), indent=2)])
            else:
                lines = _report(plan, links, options.pairs)
    except (LayoutError, PlanError, OSError) as error:
        sys.stderr.write(f"{options.file or 'plan'}: {error}\n")
        return 2
    for line in lines:
        sys.stdout.write(line + "\n")
    return 0


def summary(plan: TransferPlan, links: Links) -> dict[str, Any]:
    """Return the figures of a plan as JSON."""
    rank, busiest = plan.busiest
    gathered, scattered = gather_scatter_bytes(plan)
    return {
        "digest": plan.digest,
        "ranks": list(plan.ranks),
        "bytes_crossing": plan.bytes_crossing,
        "bytes_bound": plan.bytes_bound,
        "bytes_in_place": plan.bytes_in_place,
        "bytes_every_copy": plan.bytes_every_copy,
        "busiest": {
            "rank": rank,
            "bytes": busiest,
            "sent": plan.sent[rank],
            "received": plan.received[rank],
        },
        "gather_scatter_bytes": {"gathered": gathered, "scattered": scattered},
        "strategy": choose(plan, links),
        "seconds": predict(plan, links),
        "pairs": [
            {"from": sender, "to": receiver, "bytes": nbytes}
            for (sender, receiver), nbytes in plan.pair_bytes().items()
        ],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tangram dispatch", description="Plan transfers of batches."
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    plan = verbs.add_parser("plan", help="bytes and predicted seconds of a transfer")
    what = plan.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "file", nargs="?", metavar="FILE", help="JSON with source and target; - reads stdin"
    )
    what.add_argument(
        "--table1", action="store_true", help="batches by context, as Table 1 of EARL"
    )
    plan.add_argument(
        "--bandwidth", type=float, default=200.0, metavar="GBIT",
        help="Gbit/s of each host's link (default 200)",
    )  # fmt: skip
    plan.add_argument(
        "--latency", type=float, default=200.0, metavar="US",
        help="microseconds of one message (default 200)",
    )  # fmt: skip
    plan.add_argument(
        "--pairs", type=int, default=10, metavar="N", help="show the N largest pairs (default 10)"
    )
    plan.add_argument(
        "--gpus", type=int, default=1000, metavar="N", help="of --table1 (default 1000)"
    )
    plan.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


def _loaded(path: str) -> dict[str, Any]:
    if path == "-":
        text = sys.stdin.read()
    else:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    try:
        given = json.loads(text)
    except ValueError as error:
        raise LayoutError("file", f"is no JSON: {error}") from None
    if (
        not isinstance(given, dict)
        or set(given) - set(_FIELDS)
        or not {"source", "target"} <= set(given)
    ):
        raise LayoutError("file", "give an object with source, target and perhaps hosts, lost")
    return given


def _planned(given: dict[str, Any]) -> TransferPlan:
    hosts = given.get("hosts", {})
    if not isinstance(hosts, dict) or not all(
        rank.isdigit() and isinstance(host, str) for rank, host in hosts.items()
    ):
        raise LayoutError("hosts", 'give rank → name of the host, as in {"0": "a"}')
    return plan_transfer(
        _layout(given, "source"),
        _layout(given, "target"),
        {int(rank): host for rank, host in hosts.items()},
        integers(given.get("lost", ()), "lost", 0).tolist(),
    )


def _layout(given: dict[str, Any], side: str) -> Layout:
    try:
        return Layout.from_description(given[side])
    except LayoutError as error:
        raise LayoutError(f"{side}.{error.field}", error.problem) from None


def _report(plan: TransferPlan, links: Links, most_pairs: int) -> Iterator[str]:
    rank, busiest = plan.busiest
    yield f"{len(plan.ranks)} ranks on {len(set(plan.hosts.values()))} hosts; tensors: {', '.join(plan.target.tensors)}"
    yield ""
    yield f"crossing          {_size(plan.bytes_crossing)}   the least possible is {_size(plan.bytes_bound).strip()}"
    yield f"in place          {_size(plan.bytes_in_place)}"
    yield f"every copy sent   {_size(plan.bytes_every_copy)}"
    yield (
        f"busiest endpoint  {_size(busiest)}   rank {rank} sends {_size(plan.sent[rank]).strip()},"
        f" receives {_size(plan.received[rank]).strip()}"
    )
    gathered, scattered = gather_scatter_bytes(plan)
    yield (
        f"gather-scatter    {_size(gathered + scattered)}   through rank {plan.ranks[0]}:"
        f" {_size(gathered).strip()} in, {_size(scattered).strip()} out"
    )
    yield ""
    yield f"predicted at {links.bandwidth / _GBIT:g} Gbit/s for each host"
    seconds, chosen = predict(plan, links), choose(plan, links)
    for strategy, each in seconds.items():
        times = f"{each / seconds[chosen]:.1f}×" if seconds[chosen] else ""
        yield f"  {strategy:<16}{_seconds(each)}   {'chosen' if strategy == chosen else times}"
    pairs = sorted(plan.pair_bytes().items(), key=lambda item: (-item[1], item[0]))
    if pairs and most_pairs > 0:
        yield ""
        yield f"largest of {len(pairs)} pairs" if len(pairs) > most_pairs else "pairs"
        for (sender, receiver), nbytes in pairs[:most_pairs]:
            yield f"  {f'{sender} → {receiver}':<16}{_size(nbytes)}"


def _table_1(gpus: int, links: Links) -> Iterator[str]:
    yield f"Batch of {gpus} GPUs, {context_bytes(1, 1):,} bytes for each token of context and GPU (EARL, Table 1)."
    yield f"Links of {links.bandwidth / _GBIT:g} Gbit/s: through one controller, or exchanged by {_GPUS_PER_HOST} GPUs on each link."
    yield ""
    yield f"{'context':>8}  {'MiB':>10}  {'controller':>13}  {'exchanged':>13}"
    for context in (1024 * 2**step for step in range(6)):
        nbytes = context_bytes(context, gpus)
        once = nbytes / links.bandwidth
        exchanged = once * min(_GPUS_PER_HOST, gpus) / gpus
        # The controller's link carries all bytes in, and then out.
        yield f"{context:>8,}  {nbytes / _MIB:>10,.0f}  {_seconds(2 * once)}  {_seconds(exchanged)}"


def _size(nbytes: int) -> str:
    if nbytes < 10_000:
        return f"{nbytes:>10,} B  "
    value, unit = nbytes / 1024, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if value < 1000:
            break
        value, unit = value / 1024, larger
    return f"{value:>10,.1f} {unit}"


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:>10,.2f} s "
    return f"{seconds * 1e3:>10,.3f} ms"
