"""Table 3: throughput of DAPO with each component removed in turn, beside the rival with a tmux shell.

| variant | differs from `full` by |
|---|---|
| full | |
| without balancing | each backend is a pool of its own, and rollouts are dealt out among them in turn |
| without efficient bash | the tool types into tmux and looks each 0.5 s |
| without clean-up | a step waits for all of its rollouts |
| rival | Listing 2 with a tmux shell (`benchmarks.rival_prorl`), least in flight, with cancels |

Throughput counts samples of informative prompts, as many in each variant. All variants play the same plans against the same
backends, one after the other. Targets: full ≥ 1.45, 1.25 and 1.2 × the ablations, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.rollouts.installation import (
    Installation,
    Options,
    RolloutService,
    add_backends,
    installation,
)
from benchmarks.rollouts.language_models import TOKEN_SECONDS, LanguageModels, language_models
from benchmarks.rollouts.plans import recorded
from benchmarks.rollouts.rival import rival
from benchmarks.rollouts.trainer import Service, Totals, Training, train
from tangram_client.aio import AsyncClient

FULL, UNBALANCED, TYPED, WAITING, RIVAL = (
    "full",
    "without balancing",
    "without efficient bash",
    "without clean-up",
    "rival",
)
TARGETS: Final = {UNBALANCED: 1.45, TYPED: 1.25, WAITING: 1.2}
#: How many times slower each backend is than the fastest one.
FACTORS: Final = (1.0, 1.0, 1.0, 3.0)
SEATS: Final = 6
CORES: Final = "256"


@dataclass(frozen=True)
class Setting:
    """One point of the sweep."""

    name: str
    training: Training
    factors: Sequence[float] = FACTORS
    #: Of the fastest backend.
    token_seconds: float = TOKEN_SECONDS
    seats: int = SEATS


def settings(chosen: str, training: Training, trace: Path | None, *, sweep: bool) -> list[Setting]:
    """Return the points to measure: the main one, then the others of the sweep, then recorded lengths."""
    main = Setting(chosen, training)
    found = [main]
    if sweep:
        for factors in ((1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 2.0), (1.0, 1.0, 2.0, 4.0)):
            name = "backends " + " ".join(f"{each:g}" for each in factors)
            found.append(replace(main, name=name, factors=factors))
        for token_seconds in (0.004, 0.016):
            name = f"{1000 * token_seconds:g} ms a token"
            found.append(replace(main, name=name, token_seconds=token_seconds))
    if trace is not None:
        for scaled in (True, False):
            name = "recorded lengths, scaled to 0.42 s" if scaled else "recorded lengths"
            lengths = recorded(trace, scaled=scaled)
            shorter = replace(training, lengths=lengths, steps=training.steps if scaled else 1)
            found.append(replace(main, name=name, training=shorter))
    return found


async def measure(setting: Setting, variants: Sequence[str]) -> dict[str, Any]:
    """Return the row of each variant, and the ratios of the targets."""
    rows: dict[str, Any] = {}
    options = {"slots": setting.seats, "token_seconds": setting.token_seconds}
    with language_models(setting.factors, **options) as models:  # type: ignore[arg-type]
        ours = [each for each in variants if each != RIVAL]
        if ours:
            with installation("--cpus", CORES) as found:
                async with found.client() as client:
                    await add_backends(client, models.addresses, setting.seats)
                    alone = await add_backends(
                        client, models.addresses, setting.seats, separate=True
                    )
                    await train(_service(client, FULL, alone), _warm(setting.training))
                    for variant in ours:
                        service = _service(client, variant, alone)
                        rows[variant] = await _row(setting, variant, service, models, found)
        if RIVAL in variants:
            seats = setting.seats * len(setting.factors)
            async with rival(models.addresses, seats) as theirs:
                await train(theirs, _warm(setting.training))
                rows[RIVAL] = await _row(setting, RIVAL, theirs, models)
    return {"backends": list(setting.factors), "rows": rows, "ratios": _ratios(rows)}


def _warm(training: Training) -> Training:
    return replace(training, steps=1, wanted=0, submitted=2, clean_up=False, seed=10_000)


def _service(client: AsyncClient, variant: str, alone: list[str]) -> RolloutService:
    options = Options(handler={"bash": "tmux" if variant == TYPED else "session"})
    if variant == UNBALANCED:
        options = replace(options, pools=alone)
    return RolloutService(client, options)


async def _row(
    setting: Setting,
    variant: str,
    service: Service,
    models: LanguageModels,
    found: Installation | None = None,
) -> dict[str, Any]:
    models.call("reset")
    before = {} if found is None else found.cpu_seconds()
    training = replace(setting.training, clean_up=variant != WAITING)
    totals = await train(service, training)
    row = _figures(totals, training)
    row |= {"llm_seconds": models.llm_seconds(), "backends_busy": models.busy()}
    if found is not None:
        after = found.cpu_seconds()
        row["cpu_seconds"] = {
            kind: round(seconds - before.get(kind, 0.0), 2) for kind, seconds in after.items()
        }
    print(f"{setting.name}: {variant:24} {row}", flush=True)
    return row


def _figures(totals: Totals, training: Training) -> dict[str, Any]:
    return {
        "per_second": round(totals.informative * training.samples / totals.seconds, 3),
        "seconds": round(totals.seconds, 1),
        "action_seconds": round(totals.tool_seconds / max(1, totals.tools), 3),
        "actions": totals.tools,
        "outcomes": dict(totals.outcomes),
        "reasons": totals.reasons,
    }


def _ratios(rows: dict[str, Any]) -> dict[str, float]:
    if FULL not in rows:
        return {}
    full = rows[FULL]["per_second"]
    return {
        f"full ÷ {name}": round(full / row["per_second"], 2)
        for name, row in rows.items()
        if name != FULL
    }


def missed(ratios: dict[str, float]) -> list[str]:
    """Return the targets that the main setting missed."""
    return [
        f"full is {ratios[f'full ÷ {name}']:g} × {name}, not {wanted:g} ×"
        for name, wanted in TARGETS.items()
        if ratios.get(f"full ÷ {name}", wanted) < wanted
    ]
