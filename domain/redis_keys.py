"""Names of everything in Redis. One place, so that an operator can read them too.

All streams carry msgpack (`domain.codec`). A prefix keeps several systems apart on one server.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Keys:
    """Key names below one prefix."""

    prefix: str = "tangram"

    @property
    def inbox(self) -> str:
        """Stream: what the outside world wants and reports; read by the leader alone."""
        return f"{self.prefix}:inbox"

    @property
    def journal(self) -> str:
        """Stream: all events in the order the core saw them, with its decisions."""
        return f"{self.prefix}:journal"

    @property
    def epoch(self) -> str:
        """Number of the present leader; every write of the loop is checked against it."""
        return f"{self.prefix}:epoch"

    @property
    def leader(self) -> str:
        """Name of the present leader; expires when it shows no life."""
        return f"{self.prefix}:leader"

    @property
    def snapshot(self) -> str:
        """The core's state at one journal entry; recovery starts there."""
        return f"{self.prefix}:snapshot"

    @property
    def config(self) -> str:
        """The configuration in force (`domain.inventory.Config`)."""
        return f"{self.prefix}:config"

    @property
    def capacity(self) -> str:
        """What each pool could give at most, for refusing what can never fit."""
        return f"{self.prefix}:capacity"

    @property
    def dead_letters(self) -> str:
        """Hash: messages that could not be read or taken in, set aside for people (`domain.dead_letters`)."""
        return f"{self.prefix}:dead-letters"

    @property
    def positions(self) -> str:
        """Hash: consumer of the journal → last entry it is done with."""
        return f"{self.prefix}:positions"

    @property
    def workers(self) -> str:
        """Hash: worker → what it is and its last sign of life, for people."""
        return f"{self.prefix}:workers"

    @property
    def job_runs(self) -> str:
        """Hash: job → its newest run, for people (`tangram_web.lib.job_runs`)."""
        return f"{self.prefix}:job-runs"

    @property
    def metrics(self) -> str:
        """Counters over the journal, and the entry up to which they count."""
        return f"{self.prefix}:metrics"

    @property
    def web_requests(self) -> str:
        """Hash: what the web processes have answered, by route and status, and how long it took."""
        return f"{self.prefix}:web-requests"

    def history(self, seconds: int, project: str = "") -> str:
        """Sorted set: moments of so many seconds, of one project or all, for charts of the past."""
        return f"{self.prefix}:history:{seconds}" + (f":{project}" if project else "")

    @property
    def histories(self) -> str:
        """Sorted set: projects whose past is kept, by wall clock of their last action."""
        return f"{self.prefix}:histories"

    @property
    def scenes(self) -> str:
        """Sorted set: how the GPUs stood, for the map of the past."""
        return f"{self.prefix}:scenes"

    def commands(self, node: str, identity: str) -> str:
        """Stream: commands for one node's state directory."""
        return f"{self.prefix}:node:{node}:{identity}"

    def alive(self, node: str) -> str:
        """Incarnation of a live node worker; expires."""
        return f"{self.prefix}:alive:{node}"

    def idempotency(self, project: str, key: str) -> str:
        """Body hash and action id of a request with an Idempotency-Key; expires."""
        return f"{self.prefix}:idempotency:{project}:{key}"

    def replies(self, process: str) -> str:
        """Pub/sub channel on which one web process gets answers."""
        return f"{self.prefix}:replies:{process}"

    def passage(self, action_id: str) -> str:
        """Stream: pieces of an answer on their way to whoever reads it; expires."""
        return f"{self.prefix}:passage:{action_id}"

    def blob(self, request_id: str) -> str:
        """Bytes of a file on its way; expires."""
        return f"{self.prefix}:blob:{request_id}"
