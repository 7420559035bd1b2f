"""`tangram selector profile`: measures the degrees of a selector's service through the scheduler, cell by cell.

Each cell is stored by the selector before the next one begins, so the command may be ended at any time and run again
(rules: `managers.gpu.profiling`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, Final

import click
import msgspec
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from domain.errors import InvalidRequest
from domain.selectors import (
    Parallelism,
    ParallelismProfile,
    ProfileIdentity,
    SelectorSpec,
    SwitchCost,
    parse_parallelism,
)
from managers.gpu.profiling import (
    CallAnswer,
    CellKey,
    CellReport,
    ProfilePlan,
    Profiler,
    implied_by,
    order,
)
from tangram_client import AsyncClient
from tangram_client.cli.output import put_data, rows, seconds_text, show, talk_console
from tangram_client.cli.shell import Number, Shell, connected, pass_shell, say
from tangram_client.errors import ConflictError, TangramClientError
from tangram_client.payloads import call_action

_PATH: Final = "/v1/completions"
_COLUMNS: Final = ("DEGREE", "CONTEXT", "RESPONSES", "TOKENS/GPU/S", "LOW", "HIGH", "MEMORY")


class ScheduledProbe:
    """Makes each call as an action, which waits in line for a chunk of its service."""

    def __init__(self, client: AsyncClient, service: str, task: str) -> None:
        self._client, self._service, self._task = client, service, task

    async def call(self, gpus: int, body: Mapping[str, Any], seconds: float) -> CallAnswer:
        """Post a completion to an instance on ``gpus`` GPUs."""
        action = call_action(
            self._task,
            self._service,
            _PATH,
            json={"model": self._service.partition(":")[2], **body},
            cost={"gpu": [gpus]},
            timeout_seconds=seconds,
        )
        try:
            view = await self._client.run(action)
        except TangramClientError as error:
            return CallAnswer(0, detail=str(error))
        result, timing = view.result or {}, view.timing
        place = view.placement or {}
        return CallAnswer(
            result.get("status", 0),
            _json(result.get("body", "")),
            (timing.execution_seconds or 0.0) if timing is not None else 0.0,
            None if result.get("cached", True) else result.get("restore_seconds"),
            f"{place.get('node')}/{place.get('gpus')}",
            view.detail or ("" if view.outcome == "completed" else f"it ended {view.outcome}"),
        )


class SelectorCells:
    """Keeps cells in the profile of a selector."""

    def __init__(self, client: AsyncClient, name: str, identity: ProfileIdentity) -> None:
        self._client, self._name, self._identity = client, name, identity

    async def known(self) -> ParallelismProfile | None:
        """Return what the selector keeps of this identity."""
        try:
            body = await self._client.selectors.profile(self._name)
        except ConflictError:
            return None
        members = {
            name: body[name] for name in ParallelismProfile.__struct_fields__ if name in body
        }
        found = msgspec.convert(members, ParallelismProfile)
        return found if found.identity == self._identity else None

    async def put(self, change: ParallelismProfile) -> None:
        """Keep cells or costs."""
        await self._client.selectors.put_profile(self._name, msgspec.to_builtins(change))


@click.command()
@click.argument("name", metavar="SELECTOR")
@click.option("--contexts", metavar="N,N,…", help="Context lengths [those of the selector].")
@click.option("--responses", metavar="N,N,…", help="Responses at once [those of the selector].")
@click.option("--degrees", metavar="tp1dp2,tp2,…", help="Degrees [those of the selector].")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option(
    "--cell-seconds", type=Number(0, min_open=True), default=30.0, show_default=True,
    help="A cell begins no further round after so long.",
)  # fmt: skip
@click.option("--tokens", type=click.IntRange(2), default=16, show_default=True, help="Decoded of each response.")  # fmt: skip
@click.option("--hardware", help="What it is measured on [that of the profile in use].")
@click.option("--model", help="[that of the profile in use, else its service]")
@click.option("--engine", help="[that of the profile in use]")
@connected
@pass_shell
def profile(
    shell: Shell, /, name: str, contexts: str | None, responses: str | None, degrees: str | None,
    rounds: int, cell_seconds: float, tokens: int, **named: str | None,
) -> None:  # fmt: skip
    """Measure tokens per GPU and second, and memory, of each degree of SELECTOR's service.

    Each cell is calls of the service, which wait in line with others. What is stored already is not measured again: run the
    command once more to continue one that was ended.
    """
    found = asyncio.run(
        _profile(
            shell, name,
            lambda spec: _plan(spec, contexts, responses, degrees, rounds, cell_seconds, tokens),
            named,
        )
    )  # fmt: skip
    if shell.format in {"json", "yaml"}:
        put_data(msgspec.to_builtins(found), shell.format)
    else:
        show(rows(_COLUMNS, list(_lines(found))))
        for cost in found.switches:
            say(f"{cost.origin or 'any'} to {cost.to}: {seconds_text(cost.seconds)}")


async def _profile(
    shell: Shell, name: str, plan_of: Callable[[SelectorSpec], ProfilePlan],
    named: Mapping[str, str | None],
) -> ParallelismProfile:  # fmt: skip
    async with shell.async_client() as client:
        view = await client.selectors.get(name)
        spec = _spec(view)
        if not spec.target:
            raise click.UsageError(
                f"{name} has no target: an outside trainer measures, and sends cells to"
                f" PUT /api/v1/selectors/{name}/profile"
            )
        identity, plan = _identity(view, named), plan_of(spec)
        task = f"profile-{name}-{secrets.token_hex(3)}"
        cells = SelectorCells(client, name, identity)
        total = len(list(order(plan)))
        with _progress(name, total) as report:
            profiler = Profiler(
                plan, identity, ScheduledProbe(client, spec.target, task), cells,
                asyncio.gather, monotonic, f"measured: {task}",
            )  # fmt: skip
            costs: Sequence[SwitchCost] = await profiler.run(report)
        kept = await cells.known()
        return kept or ParallelismProfile(identity, switches=tuple(costs))


@contextlib.contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[CellReport], None]]:
    """Show cells as they are dealt with: a bar with the time that is left on a terminal, and a line for each."""
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TimeRemainingColumn(), console=talk_console(),
        disable=not talk_console().is_terminal,
    )  # fmt: skip
    with progress:
        bar = progress.add_task(name, total=total)

        def report(found: CellReport) -> None:
            progress.advance(bar)
            progress.console.print(f"{found.key}: {_said(found)}", highlight=False)

        yield report


def _said(found: CellReport) -> str:
    cell = found.cell
    if cell is None:
        return f"left open: {found.why}"
    if cell.oom:
        return f"out of memory{' (implied)' if found.implied else ''}: {found.why}"
    copies = found.key.parallelism.dp
    shared = "" if found.copies >= copies else f", {copies} copies on {found.copies} chunks"
    return f"{cell.tokens_per_gpu_second:.1f} tokens/GPU/s{shared}"


def _lines(found: ParallelismProfile) -> Iterator[tuple[str, ...]]:
    for cell in found.cells:
        head = (str(cell.parallelism), str(cell.context), str(cell.responses))
        if cell.oom:
            others = [each for each in found.cells if each is not cell]
            key = CellKey(cell.parallelism, cell.context, cell.responses)
            implied = implied_by(key, others, cell.stage) is not None
            yield (*head, "OOM (implied)" if implied else "OOM", "–", "–", "–")
            continue
        numbers = (cell.tokens_per_gpu_second, cell.low, cell.high)
        memory = cell.peak_memory_bytes
        yield (
            *head,
            *("–" if each is None else f"{each:.1f}" for each in numbers),
            "–" if memory is None else f"{memory / 2**20:.0f} MiB",
        )


def _spec(view: Mapping[str, Any]) -> SelectorSpec:
    """Return what of a selector says what is to be measured."""
    known = {name: view[name] for name in ("degrees", "target", "contexts", "responses")}
    return msgspec.convert(known, SelectorSpec)


def _identity(view: Mapping[str, Any], named: Mapping[str, str | None]) -> ProfileIdentity:
    """Return what is measured: as named, else that of the profile in use."""
    before = (view.get("profile") or {}).get("identity", {})
    model = view["target"].partition(":")[2]
    found = {
        member: named.get(member) or before.get(member) or default
        for member, default in (("hardware", ""), ("model", model), ("engine", ""))
    }
    for member, value in found.items():
        if not value:
            raise click.UsageError(
                f"say what is measured by --{member}; a selector that declares its {member} takes cells of that one"
            )
    return ProfileIdentity(**found)


def _plan(
    spec: SelectorSpec, contexts: str | None, responses: str | None, degrees: str | None,
    rounds: int, cell_seconds: float, tokens: int,
) -> ProfilePlan:  # fmt: skip
    wanted = [_degree(each) for each in degrees.split(",")] if degrees else list(spec.degrees)
    for each in wanted:
        if each not in spec.degrees:
            known = ", ".join(map(str, spec.degrees))
            raise click.UsageError(f"--degrees: {each} is not among those of the selector: {known}")
    lengths = _numbers("--contexts", contexts, spec.contexts)
    if lengths[0] <= tokens:
        raise click.UsageError(
            f"--contexts: {lengths[0]} tokens have no room for {tokens} decoded ones; give fewer --tokens"
        )
    counts = _numbers("--responses", responses, spec.responses)
    return ProfilePlan(wanted, lengths, counts, rounds, cell_seconds, tokens)


def _degree(text: str) -> Parallelism:
    try:
        return parse_parallelism(text)
    except InvalidRequest as error:
        raise click.UsageError(f"--degrees: {error}") from None


def _numbers(option: str, text: str | None, declared: Sequence[int]) -> list[int]:
    if text is None:
        return sorted(declared)
    try:
        found = sorted({int(each) for each in text.split(",")})
    except ValueError:
        raise click.UsageError(f"{option}: give numbers with commas between them") from None
    if found[0] < 1:
        raise click.UsageError(f"{option}: give numbers from 1")
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
