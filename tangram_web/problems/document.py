"""Texts that are made from the definitions of problems: `docs/problems.md` and the alerts of Prometheus.

``python -m tangram_web.problems.document FOLDER`` writes both below the root of the repository FOLDER.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Final

from tangram_web.problems.judge import LISTED_SECONDS
from tangram_web.problems.kinds import DOCUMENT, KINDS, ProblemKind, Severity
from tangram_web.problems.thresholds import PREFIX, ProblemThresholds

ALERTS: Final = "deploy/prometheus/alerts.yml"
#: Begins the generated group in the file of alerts.
BEGIN: Final = "  # One alert for each kind of problem: python -m tangram_web.problems.document .\n"
_DEFAULTS: Final = {each.name: each.default for each in fields(ProblemThresholds)}
_HEAD: Final = f"""# Problems

The Overview lists what is wrong now, worst first: what, since when, how many actions it holds up, who owns it, and the verb that helps.
The same list is at `GET /api/v1/problems`, in `tangram status`, in `/readyz?verbose` for a token with scope `operate`, and in the metrics
`tangram_problem` and `tangram_problem_actions`. One process judges once a second, so all of them agree; every
two seconds while nothing waits or runs and no problem comes or goes.

**Critical**: work is lost or cannot proceed. **Warning**: work fails or slows. Problems rank by severity, then by the actions that they
hold up, then by age. While a problem is critical, every other page has a banner.

A problem is *new* for a minute, then *held*. An operator *acknowledges* it with a note: it stays listed and leaves the banner. Once its
condition is gone it is *cleared*, and stays listed for {LISTED_SECONDS / 60:g} minutes. A condition that changes quickly raises one problem. A member of
some projects sees the problems of these projects and of what all share, such as nodes and APIs. Where facts cannot be read, problems
stay as they are; without a judgement for ten seconds pages say "No data".

**Owner**: of problems with tasks the token or account that submitted all of the project's actions among the latest thousand, where it
is one alone; else the project. Of all else the platform.

**Notifications**: a webhook with the events `problem.raised` and `problem.cleared` gets one message for an incident and one for its end,
for all kinds or for chosen ones ([operations.md](operations.md)). *Notify me of problems…* on the Overview opens its form.

Thresholds are environment variables of the projector worker and the web processes. Each kind has an alert in
[deploy/prometheus/alerts.yml](../{ALERTS}).

| kind | severity | raised after | cleared after |
|---|---|---|---|
"""


def document() -> str:
    """Return the page on problems."""
    rows = "".join(f"{row}\n" for row in map(_table_row, KINDS))
    return _HEAD + rows + "".join(f"\n{_section(kind)}" for kind in KINDS)


def _table_row(kind: ProblemKind) -> str:
    return (
        f"| [{kind.name}](#{kind.anchor}) | {kind.severity.value} | {kind.raise_seconds:g} s "
        f"| {kind.clear_seconds:g} s |"
    )


def _section(kind: ProblemKind) -> str:
    lines = [
        f"## {kind.name}",
        "",
        kind.means,
        "",
        f"- **Raised**: {kind.raised}",
        f"- **Cleared**: {kind.cleared}",
        *([f"- **Settings**: {', '.join(_settings(kind))}"] if kind.thresholds else []),
        f"- **What to do**: {kind.to_do}",
    ]
    return "\n".join(lines) + "\n"


def _settings(kind: ProblemKind) -> Iterator[str]:
    for name in kind.thresholds:
        yield f"`{PREFIX}{name.upper()}` ({_DEFAULTS[name]:g})"


def alerts() -> str:
    """Return the group of alerts, as YAML below ``groups:``."""
    return BEGIN + "  - name: tangram-problems\n    rules:\n" + "\n".join(map(_alert, KINDS))


def _alert(kind: ProblemKind) -> str:
    level = "page" if kind.severity is Severity.CRITICAL else "ticket"
    first, rest = kind.means.partition(". ")[0].rstrip("."), kind.to_do.replace('"', "'")
    return (
        f"      - alert: {kind.alert}\n"
        f'        expr: max(tangram_problem{{kind="{kind.key}"}}) > 0\n'
        f"        for: {kind.raise_seconds:g}s\n"
        f"        labels: {{severity: {level}}}\n"
        f"        annotations:\n"
        f'          summary: "{kind.name}: {first}"\n'
        f'          action: "{rest}"\n'
        f"          runbook_url: {DOCUMENT}#{kind.anchor}\n"
    )


def with_alerts(text: str) -> str:
    """Return the file of alerts with the present group of problems at its end."""
    return text.partition(BEGIN)[0].rstrip("\n") + "\n\n" + alerts()


def main(root: Path) -> None:
    """Write both files."""
    (root / DOCUMENT).write_text(document())
    path = root / ALERTS
    path.write_text(with_alerts(path.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
