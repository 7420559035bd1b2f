"""hostile: hostile programs in every mode, what became of them, and the pace of neighbours.

Plays the programs of `tests/hostile` on a node of each mode and prints, for each family, how many were
refused, contained and not protected, and the pace of a neighbour and of the node beside them. Needs root;
Docker needs dockerd and mmdebstrap. The pace is worth storing on an idle machine with four cores or more.

    python -m benchmarks.hostile                          all modes, each stored as soon as it is complete
    python -m benchmarks.hostile --mode docker            one of them: some five minutes
    python -m benchmarks.hostile --mode docker --family disk --no-pace

The result of a mode is `results/hostile-MODE.json`. A choice of families or programs is not stored.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.record import store
from tests.docker_engine import IMAGE, DockerEngine
from tests.hostile.campaign import Campaign, Kind, Verdict, a_campaign
from tests.hostile.pace import measure
from tests.hostile.program import Mode, Program
from tests.hostile.table import PROGRAMS, families

NAMES = {
    "bwrap": Mode.BWRAP,
    "user": Mode.BWRAP_USER,
    "docker": Mode.DOCKER,
    "process": Mode.PROCESS,
}
REPETITIONS = 7


@contextmanager
def an_engine(mode: Mode) -> Iterator[str]:
    """Start an engine for the Docker mode; yield its address."""
    if mode is not Mode.DOCKER:
        yield ""
        return
    engine = DockerEngine().start()
    try:
        engine.load_image()
        yield engine.host
    finally:
        engine.stop()


async def play(campaign: Campaign, programs: list[Program]) -> list[Verdict]:
    """Play programs one after another, and print each verdict."""
    verdicts = []
    for program in programs:
        verdict = await campaign.play(program)
        verdicts.append(verdict)
        if verdict.kind is Kind.BREACH:
            print(verdict, flush=True)
        else:
            notes = "; ".join(verdict.breaches)[:120]
            print(f"{verdict.kind:14} {program.family}: {program.name} {notes}", flush=True)
    return verdicts


async def run(mode: Mode, given: argparse.Namespace, engine: str) -> dict[str, Any]:
    """Play all families in one mode; return the table of it."""
    table: dict[str, Any] = {}
    async with a_campaign(mode, engine, IMAGE) as campaign:
        for family in families():
            programs = [
                each
                for each in PROGRAMS
                if each.family == family and given.family in family and given.name in each.name
            ]
            if not programs:
                continue
            kinds = Counter(verdict.kind.value for verdict in await play(campaign, programs))
            table[family] = {"programs": len(programs), **kinds}
            run_too = [each for each in programs if mode not in each.spared]
            if given.pace and run_too:
                pace = await measure(campaign, run_too, given.repetitions)
                table[family] |= {"neighbour": pace.neighbour, "node": pace.node}
    return table


def totals(table: dict[str, Any]) -> dict[str, int]:
    """Return the number of programs, and of each verdict, of one mode."""
    names = ("programs", *(kind.value for kind in Kind))
    return {name: sum(row.get(name, 0) for row in table.values()) for name in names}


def show(tables: dict[str, dict[str, Any]]) -> None:
    """Print the tables side by side: refused / contained / not protected / breaches, and the pace."""
    print(f"\n{'family':26}" + "".join(f"{mode:>34}" for mode in tables))
    for family in families():
        cells = [_cell(table[family]) for table in tables.values() if family in table]
        if cells:
            print(f"{family:26}" + "".join(f"{cell:>34}" for cell in cells))


def _cell(row: dict[str, Any]) -> str:
    counts = "/".join(
        str(row.get(kind, 0))
        for kind in (Kind.REFUSED, Kind.CONTAINED, Kind.NOT_PROTECTED, Kind.NOT_RUN, Kind.BREACH)
    )
    pace = f" {row['neighbour']:.2f} {row['node']:.2f}" if "node" in row else ""
    return counts + pace


def main(words: Sequence[str] | None = None, folder: Path | None = None) -> None:
    """Play, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=NAMES, action="append", help="default: all")
    parser.add_argument("--family", default="", help="only families with this text")
    parser.add_argument("--name", default="", help="only programs with this text")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--no-pace", dest="pace", action="store_false")
    parser.add_argument("--no-store", dest="store", action="store_false")
    given = parser.parse_args(words)
    is_whole = not given.family and not given.name
    tables = {}
    for name in given.mode or NAMES:
        with an_engine(NAMES[name]) as engine:
            tables[name] = asyncio.run(run(NAMES[name], given, engine))
        show({name: tables[name]})
        if given.store and is_whole:
            body = {"mode": NAMES[name].value, "totals": totals(tables[name])}
            store("hostile", {**body, "families": tables[name]}, name, folder)
    if len(tables) > 1:
        show(tables)
    breaches = sum(totals(table)[Kind.BREACH] for table in tables.values())
    raise SystemExit(f"{breaches} programs did what they should not" if breaches else 0)


if __name__ == "__main__":
    main()
