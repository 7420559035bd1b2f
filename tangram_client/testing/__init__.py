"""A Tangram in memory, for the tests of trainers (and of this client).

    server = FakeServer(run=lambda action: Ran(exit_code=1))
    with Client(server.url, server.token, transport=server.transport) as client:
        assert client.run(exec_action("swe", "pytest")).exit_code == 1
    assert server.executed == ["act_000001"]

It keeps the contract (states, outcomes, idempotency keys, leases, files, rollouts, completions, events,
problems) and lives in virtual time: waits and retry pauses take none. Faults are asked for by name:
`FakeServer.lose_answers`, `lose_requests`, `be_busy`, `break_streams`.
"""

from __future__ import annotations

from tangram_client.testing.clock import VirtualClock
from tangram_client.testing.rollouts import PlannedRollout
from tangram_client.testing.server import FakeServer
from tangram_client.testing.state import HOLD, Hold, Ran

__all__ = ["HOLD", "FakeServer", "Hold", "PlannedRollout", "Ran", "VirtualClock"]
