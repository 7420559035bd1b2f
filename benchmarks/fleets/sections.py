"""Sections: which cases answer a question, which rows follow from them, and which goals they miss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.fleets.cases import FIXED, ORDERS, ROUTERS, Compared, FleetCase
from simulator.figures import Interval

#: Order of `hedged` with the cache-aware router: neither arranges nor moves.
STICKY: Final = "seconds+cache"
#: Parts of the batch that are left when a case folds. The headline has the first, and the generations that run go on at the wide worker.
FOLDS: Final = (0.5, 0.25)
PREDICTORS: Final = ("trace", "good", "oracle")


@dataclass(frozen=True)
class Row:
    """One comparison: how many times shorter ours is."""

    name: str
    found: Interval
    #: Least mean; None: without a goal.
    goal: float | None = None
    #: The goal is of the interval's lower end.
    of_low: bool = False

    @property
    def missed(self) -> bool:
        """Whether the goal is not reached."""
        value = self.found.low if self.of_low else self.found.mean
        return self.goal is not None and value < self.goal


Rows = Callable[[Compared], list[Row]]


@dataclass(frozen=True)
class Section:
    """Cases and the rows that follow from them."""

    cases: tuple[FleetCase, ...]
    rows: Rows


def order() -> Section:
    """Compare orders on one worker with 8 GPUs whose slots bind, sticky by nature."""
    wide = FleetCase("rr+cache", FIXED["Fix-8"])
    plain = [replace(wide, policy=f"{each}+cache") for each in ("fcfs", "autellix")]
    ours = {name: replace(wide, policy=STICKY, predictor=name) for name in PREDICTORS}
    tokens = {name: replace(wide, policy="tokens+cache", predictor=name) for name in PREDICTORS}
    wire = replace(ours["oracle"], buckets=True)
    evicts = replace(ours["oracle"], preempts=True)
    goals = {"oracle": 1.2, "trace": 0.97}

    def rows(found: Compared) -> list[Row]:
        return [
            *(Row(f"{each.policy} over rr", found.speedup(each, wide)) for each in plain),
            *(
                Row(f"tokens, {name}, over rr", found.speedup(each, wide))
                for name, each in tokens.items()
            ),
            *(
                Row(f"seconds, {name}, over rr", found.speedup(each, wide), goals.get(name))
                for name, each in ours.items()
            ),
            Row("seconds, oracle, 32 buckets, over rr", found.speedup(wire, wide)),
            Row("seconds, oracle, Algorithm 1 evicts, over rr", found.speedup(evicts, wide)),
        ]

    return Section((wide, *plain, *ours.values(), *tokens.values(), wire, evicts), rows)


def arrange() -> Section:
    """Compare placement on equal workers whose caches never bind; the order is each system's own."""
    base = FleetCase("rr+cache", FIXED["Fix-1"])
    rivals = {name: replace(base, policy=f"rr+{name}") for name in ROUTERS}
    goals = {"cache": 1.06, "least": 1.25}
    ours = {
        (policy, name): replace(base, policy=policy, predictor=name)
        for policy in ("paper", "hedged")
        for name in PREDICTORS
    }

    def rows(found: Compared) -> list[Row]:
        return [
            Row(
                f"{policy}, {name}, over {router}",
                found.speedup(each, rival),
                goals.get(router) if (policy, name) == ("hedged", "oracle") else None,
            )
            for (policy, name), each in ours.items()
            for router, rival in rivals.items()
        ]

    return Section((*rivals.values(), *ours.values()), rows)


def fold() -> Section:
    """Compare the headline: priority by seconds with sticky placement and a fold, against rivals."""
    base = FleetCase("rr+cache", FIXED["Fix-1"])
    rivals = [
        replace(base, policy=f"{each}+{router}", degrees=degrees)
        for each in ORDERS
        for router in ROUTERS
        for degrees in FIXED.values()
    ]
    ours = {
        name: replace(base, policy=STICKY, predictor=name, fold=FOLDS[0], cuts=True)
        for name in PREDICTORS
    }
    plain = replace(base, fold=FOLDS[0], cuts=True)
    others = {
        f"{name}, {share:g} left{'' if cuts else ', what runs ends first'}": replace(
            each, fold=share, cuts=cuts
        )
        for name, each in ours.items()
        for share, cuts in ((FOLDS[1], True), (FOLDS[0], False), (FOLDS[1], False))
    }

    def rows(found: Compared) -> list[Row]:
        listed = [Row("rr+cache folded, over rr+cache Fix-1", found.speedup(plain, base))]
        for name, each in ours.items():
            modelled = name == "good"
            listed += [
                Row(f"{name}, over rr+cache Fix-1", found.speedup(each, base), 1.25 if modelled else None),
                Row(
                    f"{name}, over rr+least Fix-1",
                    found.speedup(each, replace(base, policy="rr+least")),
                    1.4 if modelled else None,
                ),
                Row(
                    f"{name}, over the best rival", found.speedup(each, *rivals),
                    1.0 if modelled else None, of_low=True,
                ),
            ]  # fmt: skip
        for name, each in others.items():
            listed.append(Row(f"{name}, over the best rival", found.speedup(each, *rivals)))
        return listed

    return Section((base, plain, *rivals, *ours.values(), *others.values()), rows)


#: Name → what differs from the base case.
HARD: Final[Mapping[str, Mapping[str, object]]] = {
    "slots bind, light tools": {"per_gpu": 60, "slots": 20, "tool_ratio": 0.2},
    "slots bind, heavy tools": {"per_gpu": 60, "slots": 20, "heavy_tools": True},
    "caches bind, 20 a GPU": {"per_gpu": 20, "cache_share": 1.0, "token_rate": 60.0},
    "caches bind, 40 a GPU": {"per_gpu": 40, "cache_share": 1.0, "token_rate": 60.0},
    "free": {},
}


def never_worse() -> Section:
    """Compare ours with the best of the rivals' grid, on the degrees of that rival, also where predictions are wrong."""
    said = ("good", "trace", "noise", "inverse")
    rivals: dict[str, list[FleetCase]] = {}
    ours: dict[tuple[str, str, str], list[FleetCase]] = {}
    for name, changes in HARD.items():
        base = replace(FleetCase("rr+cache"), **changes)  # type: ignore[arg-type]
        rivals[name] = [
            replace(base, policy=f"{each}+{router}", degrees=degrees)
            for each in ORDERS
            for router in ROUTERS
            for degrees in FIXED.values()
        ]
        for policy in (STICKY, "hedged", "paper"):
            for predictor in said:
                ours[name, policy, predictor] = [
                    replace(base, policy=policy, predictor=predictor, degrees=degrees)
                    for degrees in FIXED.values()
                ]

    def rows(found: Compared) -> list[Row]:
        return [
            Row(
                f"{name}: {policy}, {predictor}",
                found.speedup(_of_degrees(cases, best(found, rivals[name])), *rivals[name]),
                0.97 if policy == "hedged" else None,
            )
            for (name, policy, predictor), cases in ours.items()
        ]

    every = [case for group in (*rivals.values(), *ours.values()) for case in group]
    return Section(tuple(every), rows)


def best(found: Compared, rivals: Sequence[FleetCase]) -> FleetCase:
    """Return the rival with the smallest mean."""
    return min(rivals, key=lambda rival: found.makespan(rival).mean)


def _of_degrees(cases: Sequence[FleetCase], rival: FleetCase) -> FleetCase:
    return next(case for case in cases if case.degrees == rival.degrees)


SECTIONS: Final[dict[str, Callable[[], Section]]] = {
    "order": order,
    "arrange": arrange,
    "fold": fold,
    "never_worse": never_worse,
}
