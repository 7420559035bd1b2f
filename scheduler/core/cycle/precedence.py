"""Precedence: how much earlier than they arrived actions of critical trajectories are served.

An action gets its turn when it is submitted, and keeps it: turn = arrival − lead. The policy of its pool chooses
the lead as a part of the longest one, which is `TURNS` times the number of live actions, at most `MOST_LEAD`. So
an action is overtaken by no action that arrives more than `MOST_LEAD` arrivals after it, and none starves.
"""

from __future__ import annotations

from typing import Final

from scheduler.core.cycle.pool_policies import policy_of
from scheduler.core.policies.group import Outlook
from scheduler.core.policies.protocol import Policy
from scheduler.core.state.durations import expected_seconds
from scheduler.core.state.live import LiveAction, LiveTrajectory, Order
from scheduler.core.state.model import State

#: The longest lead, in arrivals.
MOST_LEAD: Final = 20_000
#: The longest lead, in numbers of live actions: after one of them, each trajectory has had its turn.
TURNS: Final = 4


def order_of(state: State, live: LiveAction, trajectory: LiveTrajectory | None) -> Order:
    """Return the order of a submitted action; a policy that ``leads`` has the end of ``trajectory`` predicted."""
    policy = policy_of(state, live.pool)
    if live.action.generation is not None:
        return live.order
    if not policy.leads:
        order = _led(state, live, policy.head_start(live.action.project))
        return _before_longer(state, order, live) if live.action.call is not None else order
    return live.order if trajectory is None else _critical_first(state, live, trajectory, policy)


def _led(state: State, live: LiveAction, lead: float) -> Order:
    """Return the order of ``live`` with a part of the longest lead."""
    if lead <= 0:
        return live.order
    priority, arrival = live.order
    return priority, arrival - lead * min(MOST_LEAD, TURNS * len(state.actions)), arrival


def _before_longer(state: State, order: Order, live: LiveAction) -> Order:
    """Return the order of a call whose residency lets it precede longer ones; ``order``: that of its policy."""
    ahead = max(-MOST_LEAD, min(MOST_LEAD, state.residency.head_start(live)))
    return (order[0], order[1] - ahead, order[-1]) if ahead else order


def _critical_first(
    state: State, live: LiveAction, trajectory: LiveTrajectory, policy: Policy
) -> Order:
    paths, now = state.critical_paths, state.now
    account = paths.account(live.pool)
    remaining = paths.submitted(trajectory, live, expected_seconds(state, live), now)
    longest = max(remaining, paths.latest_end(live.pool, state.trajectories, trajectory) - now)
    if not policy.critical(remaining, longest):
        return live.order
    delay = _delay_seconds(state, live, trajectory)
    lead = policy.lead(
        Outlook(remaining, longest, delay, account.delay_seconds, account.act_seconds)
    )
    if lead > 0:
        account.delay_seconds += delay
    return _led(state, live, lead)


def _delay_seconds(state: State, live: LiveAction, trajectory: LiveTrajectory) -> float:
    """Return by how many seconds all waiting actions together are delayed if ``live`` overtakes them.

    Each waits longer by the seconds of ``live`` times the share of the units that it takes; without known
    units, by its seconds.
    """
    node = trajectory.node
    overtaken = sum(
        queue.size
        for key, queue in state.queues.active.items()
        if key.pool == live.pool and not key.held and (node is None or key.node in {None, node})
    )
    if not overtaken:
        return 0.0
    needs, share = live.needs, 1.0
    if needs.key and not needs.key_in_cluster:
        names = [each.name for each in state.supply.nodes_of(live.pool)] if node is None else [node]
        ledgers = (state.supply.node_ledger(needs.key, name) for name in names)
        units = sum(ledger.capacity for ledger in ledgers if ledger is not None)
        share = min(1.0, needs.key_amount / units) if units > 0 else 1.0
    return overtaken * share * expected_seconds(state, live)
