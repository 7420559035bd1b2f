"""Findings about node groups: engines that lack something, and nodes that do not come. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from contract.node_group_reports import InstanceReport, NodeGroupReport
from tangram_web.doctor.cluster_facts import ClusterFacts
from tangram_web.doctor.cluster_finding import ClusterFinding, fault, unknown
from tangram_web.problems.wording import duration

ENGINE, GROUP, KEEPER = "engine", "node_group", "node_group_keeper"
#: A launch may take so long where none was seen yet: images are pulled, machines are started.
UNSEEN_LAUNCH_SECONDS: Final = 600.0
#: A launch may take this multiple of the longest one that was seen, and at least so long.
LAUNCH_FACTOR, LEAST_LAUNCH_SECONDS = 2.0, 120.0
_SHOWN: Final = 3


def groups(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Find what is wrong with each group."""
    if facts.groups and not facts.has_keeper:
        yield fault(
            KEEPER, "keeper",
            f"No process keeps the {len(facts.groups)} node groups: nothing is launched or replaced.",
            "start the projector's worker, which has the keeper: its log says why it ended",
        )  # fmt: skip
    for name, report in facts.groups.items():
        if report is None:
            if facts.has_keeper:
                yield unknown(
                    GROUP, name, f"The keeper has not reported node group {name} yet.",
                    "look again in some seconds; then look at the log of the projector's worker",
                )  # fmt: skip
            continue
        yield from _engine(name, report)
        yield from _too_few(name, report, facts)


def _engine(name: str, report: NodeGroupReport) -> Iterator[ClusterFinding]:
    engine = report.spec.engine
    said = [report.error] if report.error else []
    said += report.silent.values()
    said += [each for each in report.problems if each not in said and each not in report.error]
    for each in said:
        yield fault(
            ENGINE, name, f"Engine {engine} of node group {name}: {each.rstrip('.')}.",
            f"do as it says; the keeper asks engine {engine} again within a minute",
        )  # fmt: skip


def _too_few(name: str, report: NodeGroupReport, facts: ClusterFacts) -> Iterator[ClusterFinding]:
    joined = sum(each.joined for each in report.instances)
    if not report.below_since or joined >= report.wanted:
        return
    since = facts.now - datetime.fromisoformat(report.below_since).timestamp()
    usual = report.launch_seconds
    longest = max(LAUNCH_FACTOR * usual, LEAST_LAUNCH_SECONDS) if usual else UNSEEN_LAUNCH_SECONDS
    if since <= longest:
        return
    seen = (
        f"its longest launch took {duration(usual)}"
        if usual
        else "no launch of it has succeeded yet"
    )
    missing = [each for each in report.instances if not each.joined]
    said = "; ".join(_why(each) for each in missing[:_SHOWN])
    more = f"; and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    listed = (
        f" {said}{more}." if missing else f" Engine {report.spec.engine} lists no other instance."
    )
    yield fault(
        GROUP, name,
        f"Node group {name} has {joined} of {report.wanted} nodes for {duration(since)}, and {seen}.{listed}",
        f"an instance that waits needs machines; one that runs and has not joined needs to reach {facts.redis}: see its log",
    )  # fmt: skip


def _why(instance: InstanceReport) -> str:
    place = f" on {instance.machine}" if instance.machine else ""
    reason = f" ({instance.reason})" if instance.reason else ""
    again = f", restarted {instance.restarts} times" if instance.restarts else ""
    return f"{instance.name} is {instance.state}{place}{reason}{again} and has not joined"
