"""Generate docs/state-machines.md from the transition tables: `make docs`."""

from __future__ import annotations

from pathlib import Path

from domain.action import TRANSITIONS, ActionState, Outcome
from domain.services import SERVICE_TRANSITIONS, ServiceState

DOCUMENT = Path(__file__).with_name("state-machines.md")

_TEXT = """\
# State machines

Generated from `domain/action.py` and `domain/services.py` by `make docs`.

## Action

```mermaid
stateDiagram-v2
    [*] --> {first}
{arrows}
    {last} --> [*]
```

An action returns to `queued` only if its node was lost, and only if it was never started or may
be run again (`replay_safe`). All states survive a restart.

A finished action has exactly one outcome, which never changes: {outcomes}.

## Service on a chunk

```mermaid
stateDiagram-v2
    [*] --> {cold}
{service_arrows}
```

A service begins to drain only when no wake lock is held. After a restart of its node it is `cold`.
"""


def document() -> str:
    """Return the text of the document."""
    arrows = [
        f"    {state} --> {following}"
        for state, successors in TRANSITIONS.items()
        for following in sorted(successors, key=list(ActionState).index)
    ]
    service_arrows = [
        f"    {state} --> {following}: {event}"
        for state, events in SERVICE_TRANSITIONS.items()
        for event, following in events.items()
    ]
    return _TEXT.format(
        cold=ServiceState.COLD,
        service_arrows="\n".join(service_arrows),
        first=ActionState.QUEUED,
        last=ActionState.FINISHED,
        arrows="\n".join(arrows),
        outcomes=", ".join(f"`{outcome}`" for outcome in Outcome),
    )


if __name__ == "__main__":
    DOCUMENT.write_text(document())
