"""short_form: the table of docs/evaluation.md, made from the stored results.

    python -m benchmarks.evaluation.short_form          # write the table between its two markers
    python -m benchmarks.evaluation.short_form --page F # write the page of the stored headlines to F, too

`python -m benchmarks.evaluation` calls it when it has stored its result.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from benchmarks.evaluation.findings import Findings, of_stored
from benchmarks.evaluation.page import stored_html
from benchmarks.evaluation.paper_page import steps_text
from benchmarks.evaluation.rows import COLUMNS, POLICIES, PrintedRow, known_rows
from benchmarks.evaluation.verdicts import Kind
from simulator.figures import Interval

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "evaluation.md"
BEGIN: Final = "<!-- made by benchmarks.evaluation.short_form: begin -->\n"
END: Final = "<!-- made by benchmarks.evaluation.short_form: end -->\n"
#: When decisions 252 to 254 changed calls of GPU services: stored numbers of MOPD that are older differ from those of now.
CHANGED_AT: Final = "2026-11-28T20:30:00Z"


def table(findings: Findings) -> str:
    """Return the rows as Markdown: printed, ours, verdict, cause."""
    lines = [
        f"Scale `{findings.scale}`, {findings.seeds} seeds, input {findings.input}. {steps_text(findings)} Columns are the "
        "mean over seeds on calibrated agents and, in brackets, on recorded ones.",
        *_older(findings),
        "",
        "| headline | printed | `paper` | `malleable` | verdict on `paper` | cause |",
        "|---|---|---|---|---|---|",
        *(_line(row, findings) for row in known_rows(findings)),
        "",
        *_counts(findings),
    ]
    return "\n".join(lines) + "\n"


def _line(row: PrintedRow, findings: Findings) -> str:
    found = row.verdict(findings)
    cells = [_both(row, findings, policy) for policy in POLICIES]
    reason = (
        found.reason
        if found.kind in (Kind.REACHED_AT, Kind.REFUTED, Kind.UNDECIDED) or row.measured
        else ""
    )
    said = f"**{found.kind}**" + (f": {reason}" if reason else "")
    return f"| {row.title}, {row.where} | {row.printed} | {cells[0]} | {cells[1]} | {said} | {row.cause.filled(findings)} |"


def _older(findings: Findings) -> list[str]:
    if findings.stored_at >= CHANGED_AT:
        return []
    return [
        "",
        f"Stored at {findings.stored_at}, before decisions [252](decisions/0252-paper-charges-restores.md) to "
        "[254](decisions/0254-calls-are-overdue-by-the-length-of-the-queue.md) changed calls of GPU services: rows of "
        "MOPD are older than the code.",
    ]


def _both(row: PrintedRow, findings: Findings, policy: str) -> str:
    values = row.values(findings)
    recorded, calibrated = (values[column, policy] for column in COLUMNS)
    return f"{_mean(row, calibrated)} ({_mean(row, recorded)})"


def _mean(row: PrintedRow, found: Interval | None) -> str:
    return row.shown(None if found is None else Interval(found.mean, found.mean, found.mean))


def _counts(findings: Findings) -> list[str]:
    """Return, for each kind of verdict, the rows that have it."""
    rows = known_rows(findings)
    kinds = {row.id: row.verdict(findings).kind for row in rows}
    return [
        f"- {kind}: {', '.join(f'{row.task} {row.printed}' for row in rows if kinds[row.id] is kind)}"
        for kind in Kind
        if kind in kinds.values()
    ]


def with_table(document: str, made: str) -> str:
    """Return ``document`` with ``made`` between its markers. Raises ValueError where it lacks one."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the document lacks a marker")
    return before + begin + "\n" + made + "\n" + end + after


def update(document: Path = DOCUMENT) -> None:
    """Write the table of the stored results into the document."""
    document.write_text(with_table(document.read_text(), table(of_stored())))


def main() -> None:
    """Write the table, and the page where one is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--page", type=Path, help="write the page of the stored headlines here, too"
    )
    options = parser.parse_args()
    update()
    if options.page is not None:
        options.page.write_text(stored_html(of_stored()))
    print(DOCUMENT)


if __name__ == "__main__":
    main()
