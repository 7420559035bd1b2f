"""Names of all Redis keys.

All streams carry msgpack (`domain.codec`). A prefix separates several systems on one server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Entries of `Keys.questions`, about.
QUESTIONS: Final = 1000


@dataclass(frozen=True)
class Keys:
    """Key names below one prefix."""

    prefix: str = "tangram"

    @property
    def inbox(self) -> str:
        """Stream: requests of trainers and reports of nodes; read by the leader only."""
        return f"{self.prefix}:inbox"

    @property
    def arrivals(self) -> str:
        """List: projects with submissions that wait outside the inbox, in the order of their turns (`SUBMIT`)."""
        return f"{self.prefix}:arrivals"

    def arrivals_of(self, project: str) -> str:
        """List: messages of a project that wait outside the inbox, oldest first."""
        return f"{self.arrivals}:{project}"

    @property
    def questions(self) -> str:
        """Stream: queries that the leader answers ahead of the inbox; the latest `QUESTIONS` of them are kept."""
        return f"{self.prefix}:questions"

    @property
    def journal(self) -> str:
        """Stream: all events in the order of the core, with its decisions."""
        return f"{self.prefix}:journal"

    @property
    def epoch(self) -> str:
        """Epoch of the present leader; every write of the loop is checked against it."""
        return f"{self.prefix}:epoch"

    @property
    def leader(self) -> str:
        """Name of the present leader; expires without renewal."""
        return f"{self.prefix}:leader"

    @property
    def held(self) -> str:
        """List: the journal entry and the commands that wait for replicas (`HOLD`); while none must confirm, it is not there."""
        return f"{self.prefix}:held"

    @property
    def barrier(self) -> str:
        """Written where a writer asks replicas to confirm what others wrote; its value says nothing."""
        return f"{self.prefix}:barrier"

    @property
    def snapshot(self) -> str:
        """The core's state at one journal entry; recovery starts there."""
        return f"{self.prefix}:snapshot"

    @property
    def offered_snapshot(self) -> str:
        """A snapshot that a standby took; the leader may make it the stored one."""
        return f"{self.prefix}:offered-snapshot"

    @property
    def snapshot_offer(self) -> str:
        """What the offered snapshot was taken from (`scheduler.runtime.loop.snapshot_offers`)."""
        return f"{self.prefix}:snapshot-offer"

    @property
    def hung_pass(self) -> str:
        """The last pass that a watchdog ended (`scheduler.runtime.loop.watchdog`)."""
        return f"{self.prefix}:hung-pass"

    @property
    def config(self) -> str:
        """The configuration in force (`domain.inventory.Config`)."""
        return f"{self.prefix}:config"

    @property
    def capacity(self) -> str:
        """Largest capacity of each pool, to refuse requests that can never fit."""
        return f"{self.prefix}:capacity"

    @property
    def project_loads(self) -> str:
        """Hash: what each project has queued and arriving, and its rate (`SUBMIT`, `STATE_QUEUED`)."""
        return f"{self.prefix}:project-loads"

    @property
    def dead_letters(self) -> str:
        """Hash: messages that could not be read or applied (`domain.dead_letters`)."""
        return f"{self.prefix}:dead-letters"

    @property
    def problems(self) -> str:
        """The problems of the system as they were judged last (`tangram_web.problems`)."""
        return f"{self.prefix}:problems"

    @property
    def problem_judge(self) -> str:
        """Name of the process that judges problems; expires without renewal."""
        return f"{self.prefix}:problem-judge"

    @property
    def resource_trends(self) -> str:
        """Held and wanted parts of resources over hours (`tangram_web.problems.trends`)."""
        return f"{self.prefix}:resource-trends"

    @property
    def acknowledgements(self) -> str:
        """Hash: problem → what an operator said to it."""
        return f"{self.prefix}:acknowledgements"

    @property
    def positions(self) -> str:
        """Hash: consumer of the journal → last entry that it has processed."""
        return f"{self.prefix}:positions"

    @property
    def workers(self) -> str:
        """Hash: worker → description and last heartbeat, for display."""
        return f"{self.prefix}:workers"

    @property
    def node_doors(self) -> str:
        """Hash: node → address and secret of its door (`scheduler.runtime.redis.door_addresses`)."""
        return f"{self.prefix}:node-doors"

    def node_door(self, node: str) -> str:
        """Address and secret of the door of a node with a Redis user of its own; expires."""
        return f"{self.prefix}:node-door:{node}"

    def snapshot_door(self, node: str) -> str:
        """The same, with a secret that opens its snapshots alone: for other nodes; expires."""
        return f"{self.prefix}:snapshot-door:{node}"

    @property
    def rollout_doors(self) -> str:
        """Hash: rollout worker → address and secret of its door (`scheduler.runtime.rollouts.worker_door`)."""
        return f"{self.prefix}:rollout-doors"

    @property
    def row_doors(self) -> str:
        """Hash: rollout worker → address at which ranks of trainers pull rows (`scheduler.runtime.batches.row_door`)."""
        return f"{self.prefix}:row-doors"

    def batch(self, batch: str) -> str:
        """Manifest of a batch (`scheduler.runtime.batches.batch_store`); expires."""
        return f"{self.prefix}:batch:{batch}"

    def batch_pulls(self, batch: str) -> str:
        """Hash: rollout worker and rank → bytes that were sent; expires."""
        return f"{self.prefix}:batch-pulls:{batch}"

    def batches(self, project: str) -> str:
        """Hash: batch of a project → its summary."""
        return f"{self.prefix}:batches:{project}"

    @property
    def batch_projects(self) -> str:
        """Set: projects that have had batches."""
        return f"{self.prefix}:batch-projects"

    @property
    def batch_totals(self) -> str:
        """Hash: counts of all batches, and bytes that were sent to ranks."""
        return f"{self.prefix}:batch-totals"

    @property
    def body_store(self) -> str:
        """Identity of the folder of stored bodies (`scheduler.runtime.body_store`)."""
        return f"{self.prefix}:body-store"

    @property
    def snapshot_copies(self) -> str:
        """Hash: snapshot → its copy in the object store (`scheduler.runtime.node.snapshot_copies`)."""
        return f"{self.prefix}:snapshot-copies"

    @property
    def snapshots(self) -> str:
        """Hash: snapshot of an environment → what it is (`scheduler.runtime.redis.snapshot_registry`)."""
        return f"{self.prefix}:snapshots"

    @property
    def stored_images(self) -> str:
        """Hash: name of an image → its archive in the object store (`scheduler.runtime.redis.image_registry`)."""
        return f"{self.prefix}:stored-images"

    @property
    def facade_secret(self) -> str:
        """Secret of all web processes, for the tokens that facades make."""
        return f"{self.prefix}:facade-secret"

    def facade_records(self, door: str) -> str:
        """Hash: project and name → what a facade stores (`scheduler.runtime.redis.facade_records`)."""
        return f"{self.prefix}:facade-records:{door}"

    def facade_timed(self, door: str, name: str) -> str:
        """What a facade stores for a while (`scheduler.runtime.redis.facade_records.TimedRecords`)."""
        return f"{self.prefix}:facade-timed:{door}:{name}"

    def facade_claims(self, door: str, topic: str) -> str:
        """Hash: slot → process whose client waits for it (`scheduler.runtime.redis.facade_records`); expires."""
        return f"{self.prefix}:facade-claims:{door}:{topic}"

    def facade_claimant(self, holder: str) -> str:
        """Sign of life of a process that holds claims; expires."""
        return f"{self.prefix}:facade-claimant:{holder}"

    @property
    def job_runs(self) -> str:
        """Hash: job → its latest run, for display (`tangram_web.lib.job_runs`)."""
        return f"{self.prefix}:job-runs"

    @property
    def fleet_keeper(self) -> str:
        """Name of the process that keeps the fleets (`scheduler.runtime.fleets`); expires without renewal."""
        return f"{self.prefix}:fleet-keeper"

    @property
    def fleet_reports(self) -> str:
        """Hash: fleet → what its keeper found (`contract.fleet_reports.KeeperReport`)."""
        return f"{self.prefix}:fleet-reports"

    @property
    def fleet_predictions(self) -> str:
        """Hash: what the keeper learnt of trajectories (`scheduler.runtime.fleets.prediction_memory`)."""
        return f"{self.prefix}:fleet-predictions"

    @property
    def node_group_keeper(self) -> str:
        """Name of the process that keeps the node groups (`scheduler.runtime.node_groups`); expires without renewal."""
        return f"{self.prefix}:node-group-keeper"

    @property
    def node_group_reports(self) -> str:
        """Hash: node group → what its keeper launched and found (`contract.node_group_reports`)."""
        return f"{self.prefix}:node-group-reports"

    @property
    def metrics(self) -> str:
        """Counters over the journal, and the entry up to which they count."""
        return f"{self.prefix}:metrics"

    @property
    def web_requests(self) -> str:
        """Hash: counts and durations of HTTP requests by route and status."""
        return f"{self.prefix}:web-requests"

    @property
    def family_times(self) -> str:
        """Durations of commands by family (`tangram_web.live.family_times`)."""
        return f"{self.prefix}:family-times"

    def history(self, seconds: int, project: str = "") -> str:
        """Sorted set: samples every ``seconds``, of one project or all, for charts."""
        return f"{self.prefix}:history:{seconds}" + (f":{project}" if project else "")

    @property
    def histories(self) -> str:
        """Sorted set: projects with a stored history, by wall clock of their last action."""
        return f"{self.prefix}:histories"

    @property
    def scenes(self) -> str:
        """Sorted set: past states of the GPUs, for their map."""
        return f"{self.prefix}:scenes"

    def commands(self, node: str, identity: str) -> str:
        """Stream: commands for one node's state directory."""
        return f"{self.prefix}:node:{node}:{identity}"

    def reports(self, node: str) -> str:
        """Stream: reports of a node with a Redis user of its own, until the leader moves them to the inbox."""
        return f"{self.prefix}:reports:{node}"

    @property
    def reporting_nodes(self) -> str:
        """Set: nodes that have a stream of reports."""
        return f"{self.prefix}:reporting-nodes"

    @property
    def node_access(self) -> str:
        """Hash: node → whether it may take part, with the hash of its password (`contract.node_access`)."""
        return f"{self.prefix}:node-access"

    @property
    def node_access_done(self) -> str:
        """Hash: node → what its Redis user was made after (`scheduler.runtime.node_access`)."""
        return f"{self.prefix}:node-access-done"

    @property
    def revoked_nodes(self) -> str:
        """Set: nodes whose reports pass no more."""
        return f"{self.prefix}:revoked-nodes"

    @property
    def access_keeper(self) -> str:
        """Name of the process that makes users of nodes; expires without renewal."""
        return f"{self.prefix}:access-keeper"

    def alive(self, node: str) -> str:
        """Incarnation of a live node worker; expires."""
        return f"{self.prefix}:alive:{node}"

    def rollout_worker_alive(self, worker: str) -> str:
        """Incarnation of a live rollout worker; expires."""
        return f"{self.prefix}:rollout-worker-alive:{worker}"

    @property
    def rollout_incarnations(self) -> str:
        """Hash of one field: the number of starts of rollout workers."""
        return f"{self.prefix}:rollout-incarnations"

    def idempotency(self, project: str, key: str) -> str:
        """Body hash and action id of a request with an Idempotency-Key; expires."""
        return f"{self.prefix}:idempotency:{project}:{key}"

    def replies(self, process: str) -> str:
        """Pub/sub channel for replies to one web process."""
        return f"{self.prefix}:replies:{process}"

    def response_stream(self, action_id: str) -> str:
        """Stream: pieces of a response while it is forwarded; expires."""
        return f"{self.prefix}:passage:{action_id}"

    def blob(self, request_id: str) -> str:
        """Bytes of a file in transfer; expires."""
        return f"{self.prefix}:blob:{request_id}"
