"""Headlines of ARL-Tangram as the evaluation section of a paper: claim, its figure, ours, verdict, cause, and the map of the sweep.

The order is that of ARL-Tangram §6. Everything is made from `Findings`; verdicts are computed by `verdicts`.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from benchmarks.evaluation.findings import Findings
from benchmarks.evaluation.heatmap import heatmap
from benchmarks.evaluation.maps import conclusion
from benchmarks.evaluation.rows import COLUMNS, POLICIES, PrintedRow, known_rows
from benchmarks.evaluation.verdicts import Kind, Side, Verdict, side
from simulator.figures import Figure, Interval, plot

#: Section of the paper → its title.
SECTIONS: Final = {
    "§6.2": "End-to-end performance",
    "§6.3": "Scalability",
    "§6.4": "Analysis: fixed counts of cores, and overhead",
}
STYLE: Final = """
blockquote { margin: .5rem 0; padding-left: 1rem; border-left: 3px solid var(--line); font-style: italic; }
.row { border-bottom: 1px solid var(--line); padding-bottom: 1rem; }
.row h3 { margin-bottom: .25rem; } .verdict { font-weight: 600; }
""".strip()
#: Where times by RL step belong.
STEPS_IN: Final = "§6.2"
_MARKS: Final = {
    Kind.REACHED: "reached", Kind.REACHED_AT: "reached", Kind.REFUTED: "short", Kind.MISSED: "short",
}  # fmt: skip


def section(findings: Findings) -> str:
    """Return all rows, the overview first; empty where no headline was simulated."""
    if not findings.values:
        return ""
    known = known_rows(findings)
    verdicts = {row.id: row.verdict(findings) for row in known}
    parts = [_lead(findings), _overview(findings, verdicts)]
    for name, title in SECTIONS.items():
        rows = [row for row in known if row.where.startswith(name)]
        shown = "".join(_row(row, verdicts[row.id], findings) for row in rows)
        if name == STEPS_IN:
            shown += "".join(map(_steps, findings.plots))
        if shown:
            parts.append(f"<h2>{name} {escape(title)}</h2>{shown}")
    return "".join((*parts, _loads(findings), _pairs(findings)))


def steps_text(findings: Findings) -> str:
    """Say how many RL steps rows are the mean of."""
    if findings.steps == 1:
        return "Rows are of one RL step, those of step durations of ten."
    return f"Rows of §6.2 and of MOPD are means of {findings.steps} RL steps, others of one."


def _lead(findings: Findings) -> str:
    return (
        "<h2>Headlines</h2><p>For each number that the paper prints: its words, the printed number, ours on recorded "
        "agents and on calibrated ones (docs/simulator.md) under policy <code>paper</code>, which decides as the paper "
        "does, and under <code>malleable</code>. Brackets hold the smallest and the largest over "
        f"{findings.seeds} seeds at scale {escape(findings.scale)}. {steps_text(findings)} A verdict is on <code>paper</code>: "
        "<i>reached</i> only where no seed is on the other side; <i>at a stated load</i> where a sweep of what the print "
        "leaves open reaches it; <i>refuted</i> where no allowed cell of the sweeps does. Maps that were not simulated with this page are the stored ones.</p>"
    )


def _overview(findings: Findings, verdicts: dict[str, Verdict]) -> str:
    rows = "".join(
        f'<tr><td><a href="#row-{row.id}">{escape(row.title)}</a></td><td>{escape(row.printed)}</td>'
        f'<td class="value">{escape(row.shown(_main(row, findings)))}</td>{_verdict_cell(verdicts[row.id])}</tr>'
        for row in known_rows(findings)
    )
    return (
        "<div><table><tr><th>headline</th><th>printed</th><th>ours, calibrated, paper</th><th>verdict</th></tr>"
        f"{rows}</table></div>"
    )


def _steps(figure: Figure) -> str:
    return (
        f"<h3>{escape(figure.title)}</h3><p>Percentiles of the time of a trajectory, thinking included. Thinking and rollouts "
        f"get longer with each step, by a growth that is not printed.</p>{plot(figure)}"
    )


def _row(row: PrintedRow, found: Verdict, findings: Findings) -> str:
    cause = row.cause.filled(findings) or "Its numbers are not stored yet."
    maps = "".join(_map(name, findings) for name in row.sweeps)
    return (
        f'<section class="row" id="row-{row.id}"><h3>{escape(row.title)}</h3>'
        f"<blockquote>{escape(row.claim)} <small>({escape(row.where)})</small></blockquote>{_numbers(row, findings)}"
        f'<p>Verdict: <span class="verdict {_MARKS.get(found.kind, "")}">{found.kind}</span>. {escape(found.reason)}</p>'
        f"<p>Cause: {escape(cause)}</p>{maps}</section>"
    )


def _numbers(row: PrintedRow, findings: Findings) -> str:
    values = row.values(findings)
    heads = "".join(f"<th>{policy}, {column}</th>" for policy, column in _places())
    cells = "".join(_cell(row, values[column, policy]) for policy, column in _places())
    return f"<div><table><tr><th>printed</th>{heads}</tr><tr><td>{escape(row.printed)}</td>{cells}</tr></table></div>"


def _places() -> Iterable[tuple[str, str]]:
    return ((policy, column) for policy in POLICIES for column in COLUMNS)


def _cell(row: PrintedRow, found: Interval | None) -> str:
    mark = ""
    if found is not None and row.is_outcome:
        where = side(found, row.wanted, lower=row.lower)
        mark = {Side.REACHES: " reached", Side.MISSES: " short"}.get(where, "")
    return f'<td class="value{mark}">{escape(row.shown(found))}</td>'


def _main(row: PrintedRow, findings: Findings) -> Interval | None:
    """Return the number that a verdict is on: of a measured row the highest load's."""
    if row.measured:
        return findings.loads[max(findings.loads)].share if findings.loads else None
    return row.values(findings)[COLUMNS[-1], POLICIES[0]]


def _verdict_cell(found: Verdict) -> str:
    return f'<td class="{_MARKS.get(found.kind, "")}">{found.kind}</td>'


def _map(name: str, findings: Findings) -> str:
    drawn = findings.maps.get(name)
    if drawn is None:
        return f"<p class='note'>Sweep {escape(name)} is not stored yet.</p>"
    return f"<figure>{heatmap(drawn)}<figcaption>{escape(conclusion(drawn))}</figcaption></figure>"


def _loads(findings: Findings) -> str:
    if not findings.loads:
        return ""
    rows = "".join(
        f"<tr><td>{load:g}</td><td>{each.share.mean:.2%} ({each.share.low:.2%} to {each.share.high:.2%})</td>"
        f"<td>{1000 * each.overhead_seconds:.1f} ms</td><td>{each.execution_seconds:.2f} s</td></tr>"
        for load, each in sorted(findings.loads.items())
    )
    return (
        '<h2 id="measured-overhead">Overhead, measured</h2><p>Measured, not simulated: a whole Tangram on the container '
        "driver, actions that keep a core busy for 0.975 s on average and arrive at random, at four offered loads; other programs "
        "on the machine make both parts longer (<code>python -m benchmarks.docker_loads</code>). The paper measured 2 % at "
        "batch 1,280.</p><table><tr><th>share of the cores</th><th>overhead over execution</th><th>overhead</th>"
        f"<th>execution</th></tr>{rows}</table>"
    )


def _pairs(findings: Findings) -> str:
    if not findings.pairs:
        return ""
    rows = "".join(
        f"<tr><td>{escape(pair.what)}</td><td>{pair.small}</td><td>{pair.large}</td><td>{pair.difference:+.1%}</td>"
        f"<td>{'intervals overlap' if pair.overlaps else 'intervals are apart'}</td></tr>"
        for pair in findings.pairs
    )
    return (
        '<h2 id="scales">Small clusters beside full ones</h2><p>Sweeps have clusters of cores and limits 16 times smaller. '
        "Cells of them at both sizes, one RL step:</p><div><table><tr><th>ratio</th><th>1/16</th><th>full</th>"
        f"<th>difference</th><th></th></tr>{rows}</table></div>"
    )
