"""A report as one HTML page that needs nothing beside it, and as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.evaluation import paper_page
from benchmarks.evaluation.cases import FULL
from benchmarks.evaluation.findings import Findings
from benchmarks.evaluation.report import Measured, Report
from simulator.figures import OURS, Claim, Figure, plot

STYLE: Final = """
:root { color-scheme: light dark; --line: #ddd; --quiet: #555; --said: #fff3cd; --ok: #00684a;
  --short: #a33b00; }
@media (prefers-color-scheme: dark) { :root { --line: #444; --quiet: #aaa; --said: #453a12;
  --ok: #5fd3a6; --short: #ff9f6b; } body { color: #e6e6e6; background: #16181c; }
  a { color: #8ab4ff; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 3rem; } svg { width: 100%; max-width: 46rem; font-size: 12px; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .25rem .9rem .25rem 0;
  border-bottom: 1px solid var(--line); }
.value { white-space: nowrap; } small { font-size: .85em; }
ul { columns: 22rem; } .note { color: var(--quiet); }
.simulated { background: var(--said); padding: .5rem 1rem; }
.reached { color: var(--ok); } .short { color: var(--short); }
section, div { overflow-x: auto; }
""".strip()


SIMULATED: Final = (
    '<p class="simulated">Every number here was simulated, but those that are said to be '
    "measured: what decides in production decides here "
    "in virtual time, everything around it modelled (docs/simulator.md). The paper's numbers "
    "were measured on its testbed, with workloads and profiles that it does not print.</p>"
)


def write(report: Report, folder: Path, findings: Findings | None = None) -> tuple[Path, Path]:
    """Write ``report.html`` and ``report.json``; each is there once it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    body = msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"
    page, data = folder / "report.html", folder / "report.json"
    for path, content in ((data, body), (page, html(report, findings).encode())):
        part = path.with_name(path.name + ".part")
        part.write_bytes(content)
        part.replace(path)
    return page, data


def stored_html(findings: Findings) -> str:
    """Return the page of headlines alone."""
    return f"{_head('ARL-Tangram')}{paper_page.section(findings)}</body></html>\n"


def _head(paper: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Tangram: simulated evaluation</title><style>{STYLE}\n{paper_page.STYLE}</style></head><body>"
        f"<h1>The evaluation of {escape(paper)}, simulated</h1>{SIMULATED}"
    )


def html(report: Report, findings: Findings | None = None) -> str:
    """Return the page; where there are ``findings``, it begins with the paper's headlines."""
    smaller = "" if report.divisor == 1 else f", {report.divisor} times smaller than the paper's"
    cut = report.interactions < FULL.interactions
    shorter = f", trajectories cut after {report.interactions} interactions" if cut else ""
    seeds = f"{report.seeds} seeds" if report.seeds > 1 else "one seed"
    contents = "".join(
        f'<li><a href="#{escape(each.id)}">{escape(each.title)}</a></li>' for each in report.figures
    )
    left_out = "".join(
        f"<tr><td>{escape(what)}</td><td>{escape(why)}</td></tr>" for what, why in report.left_out
    )
    return (
        f"{_head(report.paper)}<p>Scale: {escape(report.scale)}{smaller}{shorter}. Input: {escape(report.input)}. Intervals: the "
        f"smallest and the largest over {seeds}. Nothing was tuned per figure.</p>"
        f"{paper_page.section(findings) if findings is not None else ''}"
        f"<h2>Figures and tables</h2><ul>{contents}</ul>{_summary(report)}{''.join(map(_figure, report.figures))}"
        f"{_beside(report.measured) if report.ours == OURS else ''}<h2>Left out</h2><div><table>{left_out}</table></div></body></html>\n"
    )


def _figure(figure: Figure) -> str:
    note = f'<p class="note">{escape(figure.notes)}</p>' if figure.notes else ""
    drawn = "" if figure.kind == "table" else plot(figure)
    return (
        f'<section id="{escape(figure.id)}"><h2>{escape(figure.title)}</h2>{note}{drawn}'
        f"{_claims(figure.claims)}{_numbers(figure)}</section>"
    )


def _claims(claims: tuple[Claim, ...]) -> str:
    if not claims:
        return ""
    rows = "".join(_claim(claim, claim.note) for claim in claims)
    return (
        "<table><tr><th></th><th class='value'>printed in the paper</th><th>simulated</th><th></th><th></th></tr>"
        f"{rows}</table>"
    )


def _claim(claim: Claim, note: str) -> str:
    verdict = claim.verdict
    mark = f' class="{"reached" if verdict == "reached" else "short"}"' if verdict else ""
    return (
        f"<tr><td>{escape(claim.what)}</td><td>{escape(claim.paper or '')}</td>"
        f'<td class="value">{claim.ours}</td><td{mark}>{escape(verdict)}</td><td>{escape(note)}</td></tr>'
    )


def _summary(report: Report) -> str:
    """Return what the paper prints a number of, beside each of our policies."""
    rows = "".join(
        _printed(figure, claim, report.ours) for figure in report.figures for claim in figure.claims
        if claim.verdict
    )  # fmt: skip
    if not rows:
        return ""
    heads = "".join(f"<th>simulated,<br>{escape(policy)}</th>" for policy in report.ours)
    return (
        "<h2>What the paper prints, and what came out</h2><p>Simulated, for each of our policies; "
        f"<code>paper</code> decides as {escape(report.paper)} does. Where a rival is named, how many times its "
        "number is ours.</p><div><table><tr><th>figure</th>"
        f"<th></th><th class='value'>printed in<br>the paper</th>{heads}</tr>{rows}</table></div>"
    )


def _printed(figure: Figure, claim: Claim, ours: Sequence[str]) -> str:
    """Return one number of the paper, and the same claim about each of our policies."""
    named = re.compile(rf"\b({'|'.join(ours)})\b")
    subject = _subject(claim, named)
    alike = {
        _policy(each, named): each for each in figure.claims if _subject(each, named) == subject
    }
    cells = ""
    for policy in ours:
        verdict = alike[policy].against(claim.paper) if policy in alike else ""
        mark = f' class="{"reached" if verdict == "reached" else "short"}"' if verdict else ""
        shown = ""
        if policy in alike:
            shown = (
                f'<span class="value">{alike[policy].ours}</span><br>'
                f"<small>{escape(verdict)}</small>"
            )
        cells += f"<td{mark}>{shown}</td>"
    link = f'<a href="#{escape(figure.id)}">{escape(figure.id)}</a>'
    what = escape(f"{subject} ({claim.note})" if claim.note else subject)
    return f"<tr><td>{link}</td><td>{what}</td><td>{escape(claim.paper or '')}</td>{cells}</tr>"


def _subject(claim: Claim, named: re.Pattern[str]) -> str:
    """Return what a claim is about, whatever policy it is made for."""
    return named.sub("", claim.what).removesuffix(" over ").strip(" ,")


def _policy(claim: Claim, named: re.Pattern[str]) -> str:
    found = named.search(claim.what)
    return found[0] if found else ""


def _beside(measured: Measured | None) -> str:
    """Return real runs beside simulated ones, which stand nowhere else."""
    title = "<h2>Measured beside simulated</h2>"
    if measured is None:
        return f"{title}<p>No stored measurement was found (python -m benchmarks.predicted).</p>"
    rows = "".join(
        f"<tr><td>{escape(policy)}</td><td>{each.measured_mean:.3f}</td>"
        f"<td>{each.simulated_mean:.3f}</td><td>{each.mean_off:+.1%}</td>"
        f"<td>{each.measured_p95:.3f}</td><td>{each.simulated_p95:.3f}</td>"
        f"<td>{each.p95_off:+.1%}</td></tr>"
        for policy, each in measured.result.items()
    )
    return (
        f"{title}<p>The same small workload on a real Tangram and in the simulator: ACT in seconds. "
        f"Wanted: the mean within 10 %, p95 within 20 %. Measured at {escape(measured.measured_at)} "
        f"by <code>{escape(measured.command)}</code>.</p><div><table><tr><th>policy</th><th>mean measured"
        "</th><th>simulated</th><th>off</th><th>p95 measured</th><th>simulated</th><th>off</th></tr>"
        f"{rows}</table></div>"
    )


def _numbers(figure: Figure) -> str:
    places = list(dict.fromkeys(x for each in figure.series for x, _ in each.points))
    head = "".join(f"<th>{escape(f'{x:g}' if isinstance(x, float | int) else x)}</th>"
                   for x in places)  # fmt: skip
    rows = []
    for series in figure.series:
        known = dict(series.points)
        cells = "".join(f"<td>{known.get(x, '-')}</td>" for x in places)
        rows.append(f"<tr><td>{escape(series.name)}</td>{cells}</tr>")
    return (
        f"<details{' open' if figure.kind == 'table' else ''}>"
        f"<summary>numbers: {escape(figure.y)}</summary>"
        f"<table><tr><th>{escape(figure.x)}</th>{head}</tr>{''.join(rows)}</table></details>"
    )
