"""Moves of environments: idle ones leave a node that lets its trajectories finish, for another node of the pool.

Other moves than those of a drain are begun by `state.rebalancing`; what follows is the same.

States of one move, which is `LiveTrajectory.move`; source: node of the trajectory.

    idle on a draining node ──`MoveEnvironment` to the source──▶ packing
    packing   ──`EnvironmentPacked`──▶ receiving, `ReceiveEnvironment` to the target
    packing   ──`EnvironmentPacked`, failed──▶ stays, `EndMove` to the source
    packing   ──time is over──▶ given up: it ends with the report of the source, which may be sealing files now
    receiving ──`EnvironmentReceived`──▶ lives on the target, `EndMove` to the source
    receiving ──`EnvironmentReceived` failed, time is over, the target is unusable──▶ stays, `EndMove` to both
    any       ──the trajectory ends, or its node is dead──▶ over, `EndMove` to the target

Rules
1. Only a trajectory without a running exec action, without a fork and open is moved; for a drain also without a waiting one. No exec
   action of it is queued meanwhile, no fork begins, and requests for files wait. A program or a session in the environment is seen by its node, which refuses then.
2. The environment is the source's until the journal has `EnvironmentReceived`. The `EndMove` of the same pass names the node
   where the trajectory lives on, and only by it a node removes anything.
3. The target is usable, and has room for the memory of the environment, which no waiting action needs. It is reserved there from the first order on.
   A node with at least the cores and the other resources of the source is preferred; else, where the pool has `move_to_smaller`, one with
   what the actions of the trajectory have needed so far will do. An action that arrives during the move and needs more ends it.
4. A node that may have a copy which is not the trajectory's holds its memory until it reports `EnvironmentRemoved`, or is gone
   (`LiveTrajectory.copies`). The trajectory's name is not free before, and the node is no target of it.
5. Nothing is decided by a report of another move (`LiveMove.number`), so repeated and late ones change nothing.

Crashes. Nodes read orders again that they have not reported: both orders may be repeated. A source that starts again still
holds what it has packed. A node that lost its state, is forgotten or revoked holds nothing: as target it ends the move, as source it ends the
trajectory, as ever. A leader that fails is followed by one with the same state.

What stays is looked at again when an action of it ends, when nodes or the configuration change, and each `LOOK_SECONDS`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf
from typing import Final

from msgspec.structs import replace

from domain.decisions import (
    Decision,
    EndMove,
    MoveEnvironment,
    ReceiveEnvironment,
    Refuse,
    TransferFile,
)
from domain.events import OPEN_FILES, FileRequested
from domain.ids import node_resource
from domain.moves import ACTING, FAILED, IN_USE, NO_ROOM, NOT_MOVED, PROCESS, SESSION, WAITING
from scheduler.core.state.forks import continue_line, memory_awaited
from scheduler.core.state.live import LiveMove, LiveNode, LiveTrajectory
from scheduler.core.state.model import REBALANCE_SECONDS, State
from scheduler.core.state.timers import TimerKind

#: Longest move; its trajectory's actions wait for so long at most, unless its node is silent.
MOVE_SECONDS: Final = 120.0
#: All that stays is looked at so often.
LOOK_SECONDS: Final = 5.0
#: A trajectory that holds a process or a session, or is used, is not asked again for so long, and after a failure for so long: doubled
#: each time up to the second number.
BUSY_SECONDS: Final = (10.0, 80.0)
FAILED_SECONDS: Final = (30.0, 480.0)
#: Moves at once, from a node and to a node: they share its disk and its network.
MOST_AT_ONCE: Final = 4
_BUSY: Final = frozenset({PROCESS, SESSION, IN_USE})


@dataclass(slots=True)
class _Look:
    """What one pass has found, so that it asks once and not for each of a thousand trajectories."""

    #: Moves on their way, by each node that takes part.
    loads: Counter[str] = field(default_factory=Counter)
    #: Source and needs of its actions → least memory for which there is no target, and the code why.
    none: dict[tuple[str, tuple[tuple[str, int], ...] | None], tuple[int, str]] = field(
        default_factory=dict
    )


def note_idle(state: State, trajectory: LiveTrajectory) -> None:
    """Have the next pass look at a trajectory of which an action or a fork has ended."""
    if trajectory.node in state.supply.finishing:
        state.moves.idle[trajectory.key] = None


def begin_moves(state: State, decisions: list[Decision]) -> None:
    """Begin the moves that can begin now, after a change of the state."""
    moves = state.moves
    if moves.all:
        found = state.environments.on(*state.supply.finishing)
    else:
        found = [state.trajectories[key] for key in moves.idle if key in state.trajectories]
    everything, moves.all = moves.all, False
    moves.idle.clear()
    left, look = False, _Look()
    for trajectory in found:
        source = _source(state, trajectory)
        if source is None or not moves_from(state, source):
            continue
        left = True
        if _may_move(state, trajectory, source):
            look.loads = look.loads or loads_of(state)
            _begin(state, trajectory, source, look, decisions)
    if everything:
        moves.due = None
    if left and moves.due is None:
        moves.due = state.now + LOOK_SECONDS
        state.timers.set(moves.due, TimerKind.MOVES, "")


def _source(state: State, trajectory: LiveTrajectory) -> LiveNode | None:
    """Return the node that lets ``trajectory`` finish; None: it stays for another reason, or ends."""
    name = trajectory.node
    if name not in state.supply.finishing or name is None or trajectory.closing is not None:
        return None
    return state.supply.nodes[name]


def moves_from(state: State, node: LiveNode) -> bool:
    """Return whether idle environments may leave ``node``."""
    pool = state.config.pools.get(node.inventory.pool)
    return node.inventory.moves and pool is not None and pool.move_environments


def _may_move(state: State, trajectory: LiveTrajectory, source: LiveNode) -> bool:
    """Return whether a move of ``trajectory`` may begin now, if there is a target."""
    if state.now < trajectory.stays_until or not _is_idle(trajectory):
        return False
    return may_move(state, trajectory, source)


def may_move(state: State, trajectory: LiveTrajectory, source: LiveNode) -> bool:
    """Return whether nothing but its queued actions and a pause after a failure keeps ``trajectory`` from a move."""
    if trajectory.move is not None or trajectory.busy is not None or trajectory.closing is not None:
        return False
    return not (trajectory.forks or trajectory.forking) and state.supply.continues(source)


def _is_idle(trajectory: LiveTrajectory) -> bool:
    return trajectory.busy is None and not any(i in trajectory.live for i in trajectory.line)


def loads_of(state: State) -> Counter[str]:
    """Return the moves on their way, by each node that takes part."""
    loads: Counter[str] = Counter()
    for key in state.moves.active:
        trajectory = state.trajectories[key]
        if trajectory.move is not None and trajectory.node is not None:
            loads[trajectory.node] += 1
            loads[trajectory.move.target] += 1
    return loads


def _begin(
    state: State,
    trajectory: LiveTrajectory,
    source: LiveNode,
    look: _Look,
    decisions: list[Decision],
) -> None:
    """Begin a move of ``trajectory``, unless no target has room or enough are on their way."""
    loads, memory = look.loads, trajectory.memory_bytes
    if loads[source.name] >= MOST_AT_ONCE:
        trajectory.stays = WAITING
        return
    needed = None if trajectory.needed is None else tuple(sorted(trajectory.needed.items()))
    least, why = look.none.get((source.name, needed), (inf, ""))
    if memory >= least:
        trajectory.stays = why
        return
    target, is_full = _target(state, trajectory, source, loads)
    if target is None:
        trajectory.stays = WAITING if is_full else NO_ROOM
        if not trajectory.copies:  # else it is the only one that may not go there
            look.none[source.name, needed] = memory, trajectory.stays
        return
    until = state.now + MOVE_SECONDS
    order_move(state, trajectory, LiveMove(trajectory.moves + 1, target, until), decisions)
    loads[source.name] += 1
    loads[target] += 1


def order_move(
    state: State,
    trajectory: LiveTrajectory,
    move: LiveMove,
    decisions: list[Decision],
    most_bytes: int = 0,
) -> None:
    """Reserve the memory of a move on its target, and have the node of the trajectory pack."""
    assert trajectory.node is not None
    if trajectory.memory_bytes:
        ledger = state.supply.ledgers[node_resource("memory", move.target)]
        ledger.allocate(trajectory.holder, trajectory.memory_bytes)
    trajectory.moves, trajectory.move = move.number, move
    state.moves.active.add(trajectory.key)
    state.timers.set(move.until, TimerKind.MOVE, trajectory.key)
    decisions.append(
        MoveEnvironment(
            trajectory.key, trajectory.node, move.number, move.target, trajectory.project,
            trajectory.environment, most_bytes,
        )
    )  # fmt: skip


def _target(
    state: State,
    trajectory: LiveTrajectory,
    source: LiveNode,
    loads: Counter[str],
) -> tuple[str | None, bool]:
    """Return the node that an environment moves to, and whether one would do that has enough moves now."""
    supply, is_full = state.supply, False
    smaller, waits = None, False
    if trajectory.memory_bytes and memory_awaited(state, trajectory.pool):
        return None, False
    for node in supply.least_loaded(trajectory.pool):
        if not takes(state, trajectory, source, node):
            continue
        is_like = _is_like(source, node)
        if loads[node.name] >= MOST_AT_ONCE:
            is_full, waits = True, waits or is_like
        elif is_like:
            return node.name, False
        else:
            smaller = smaller or node.name
    return None if waits else smaller, is_full


def takes(state: State, trajectory: LiveTrajectory, source: LiveNode, node: LiveNode) -> bool:
    """Return whether ``node`` can have the environment of ``trajectory``, which ``source`` has."""
    supply, name = state.supply, node.name
    if name in trajectory.copies or not (node.inventory.moves and supply.usable(node)):
        return False
    memory, ledger = trajectory.memory_bytes, supply.node_ledger("memory", name)
    if memory and (ledger is None or not ledger.fits((memory,))):
        return False
    return _is_like(source, node) or _is_enough(trajectory, source, node)


def _is_like(source: LiveNode, target: LiveNode) -> bool:
    """Return whether ``target`` isolates commands as ``source`` does, and has at least its resources.

    Memory is none of them: the environment's is known, and equal machines differ by some megabytes.
    """
    have, offered = source.inventory, target.inventory
    if have.isolation != offered.isolation:
        return False
    for kind, mine in have.resources.items():
        theirs = offered.resources.get(kind)
        if kind == "memory":
            continue
        if theirs is None or theirs.capacity < mine.capacity:
            return False
        if theirs.memory_bytes < mine.memory_bytes:
            return False
    return True


def _is_enough(trajectory: LiveTrajectory, source: LiveNode, target: LiveNode) -> bool:
    """Return whether ``target`` isolates commands as ``source`` does, and has what the actions of ``trajectory`` have needed so far."""
    have, offered = source.inventory, target.inventory
    if trajectory.needed is None or have.isolation != offered.isolation:
        return False
    for kind, amount in trajectory.needed.items():
        mine, theirs = have.resources.get(kind), offered.resources.get(kind)
        if theirs is None or theirs.capacity < amount:
            return False
        if mine is not None and theirs.memory_bytes < mine.memory_bytes:
            return False
    return True


def _outgrown(state: State, trajectory: LiveTrajectory, target: LiveNode) -> str:
    """Return why the target of a move does not do any more: an action that arrived meanwhile needs more; empty while it does."""
    source = state.supply.nodes[trajectory.node or ""]
    if trajectory.needed is None or _is_like(source, target):
        return ""
    if _is_enough(trajectory, source, target):
        return ""
    return f"an action needs more than node {target.name} has"


def packed(state: State, trajectory: LiveTrajectory, decisions: list[Decision]) -> None:
    """Have the target fetch what the source has packed, or end the move."""
    move, node = trajectory.move, trajectory.node
    assert move is not None
    assert node is not None
    target = state.supply.nodes.get(move.target)
    if move.given_up:
        end_move(state, trajectory, move.given_up, decisions, reported=True)
    elif target is None or not state.supply.usable(target):
        why = f"node {move.target} takes no environments now"
        end_move(state, trajectory, why, decisions, reported=True)
    elif why := _outgrown(state, trajectory, target):
        end_move(state, trajectory, why, decisions, reported=True)
    else:
        trajectory.move = replace(move, packed=True)
        decisions.append(
            ReceiveEnvironment(
                trajectory.key, move.target, move.number, node, trajectory.project,
                trajectory.environment,
            )
        )  # fmt: skip


def received(state: State, trajectory: LiveTrajectory, decisions: list[Decision]) -> None:
    """Let a trajectory live on the target, which has its environment; the source removes its own (rule 2)."""
    move, source = trajectory.move, trajectory.node
    assert move is not None
    assert source is not None
    target = state.supply.nodes[move.target]
    if not state.supply.continues(target):
        end_move(state, trajectory, f"node {move.target} takes no actions now", decisions)
        return
    if why := _outgrown(state, trajectory, target):
        end_move(state, trajectory, why, decisions)
        return
    if move.claims:
        trajectory.refused_moves, trajectory.waits_until = 0, 0.0
        state.rebalancing.note(state.now, move)
    _add_copy(state, trajectory, source)
    state.environments.put(trajectory, move.target)
    trajectory.home = ()
    _forget(state, trajectory)
    trajectory.stays, trajectory.failed_moves, trajectory.stays_until = "", 0, 0.0
    state.supply.nodes[source].moved += 1
    decisions.append(_ended(trajectory, move, source, move.target))
    _answer_file_requests(trajectory, move.target, decisions)
    note_idle(state, trajectory)  # the target may be drained by now
    continue_line(state, trajectory, decisions)


def end_move(
    state: State,
    trajectory: LiveTrajectory,
    why: str,
    decisions: list[Decision],
    *,
    stays: str = FAILED,
    gone: str = "",
    reported: bool = False,
) -> None:
    """End a move: the trajectory stays where it was. Without a move nothing changes.

    ``stays``: code of the reason. ``gone``: node that has lost its state, so it has no copy. ``reported``: the source
    packs nothing; else the end of a move that is packing waits for its report, since it may be sealing files now.
    """
    move, source = trajectory.move, trajectory.node
    if move is None:
        return
    assert source is not None
    lives_on = "" if trajectory.closing is not None or gone == source else source
    if lives_on and not (move.packed or reported):
        if move.target == gone:
            _release(state, trajectory, gone)
            move = replace(move, target="")
        trajectory.move = replace(move, until=inf, given_up=move.given_up or why)
        return
    _forget(state, trajectory)
    if lives_on:
        decisions.append(_ended(trajectory, move, source, source, why))
    if move.packed and gone != move.target:
        _add_copy(state, trajectory, move.target)
        decisions.append(_ended(trajectory, move, move.target, lives_on, why))
    elif move.target:
        _release(state, trajectory, move.target)
    _answer_file_requests(trajectory, lives_on, decisions)
    if not lives_on:
        return
    if move.claims:
        trajectory.refused_moves += 1
        trajectory.waits_until = state.now + _pause(stays, trajectory.refused_moves)
    else:
        trajectory.failed_moves += 1
        trajectory.stays = stays
        trajectory.stays_until = state.now + _pause(stays, trajectory.failed_moves)
    continue_line(state, trajectory, decisions)


def _ended(
    trajectory: LiveTrajectory, move: LiveMove, node: str, lives_on: str, why: str = ""
) -> EndMove:
    return EndMove(trajectory.key, node, move.number, lives_on, why, trajectory.task)


def _pause(stays: str, failures: int) -> float:
    """Return how long a trajectory is not tried again after so many failures."""
    first, longest = BUSY_SECONDS if stays in _BUSY else FAILED_SECONDS
    return min(longest, first * 2.0 ** min(8, failures - 1))


def file_transfer(trajectory: LiveTrajectory, node: str, wanted: FileRequested) -> TransferFile:
    """Return the order of a request for files to the node of a trajectory."""
    # Earlier verbs know no environment, so journals of earlier versions replay equal.
    environment = trajectory.environment if wanted.verb == OPEN_FILES else None
    return TransferFile(
        trajectory.key, node, wanted.request_id, wanted.verb, wanted.path, wanted.reply_to,
        environment,
    )  # fmt: skip


def _answer_file_requests(
    trajectory: LiveTrajectory, lives_on: str, decisions: list[Decision]
) -> None:
    """Pass on the requests for files that waited for a move; refuse them if the trajectory is over."""
    for wanted in trajectory.file_requests:
        if lives_on:
            decisions.append(file_transfer(trajectory, lives_on, wanted))
        else:
            why = f"the trajectory is over: {trajectory.closing or 'its environment is lost'}"
            decisions.append(Refuse(wanted.request_id, wanted.reply_to, "conflict", why))
    trajectory.file_requests = []


def give_up(state: State, trajectory: LiveTrajectory, decisions: list[Decision]) -> None:
    """End a move whose time is over."""
    move = trajectory.move
    if move is not None and move.claims:
        state.rebalancing.note(state.now, move)
    seconds = REBALANCE_SECONDS if move is not None and move.claims else MOVE_SECONDS
    end_move(state, trajectory, f"it took longer than {seconds:g} s", decisions)


def _forget(state: State, trajectory: LiveTrajectory) -> None:
    if trajectory.move is not None and trajectory.move.claims:
        state.queues.deferrals.clear()
        state.dirty = True
    trajectory.move = None
    state.moves.active.discard(trajectory.key)


def _release(state: State, trajectory: LiveTrajectory, node: str) -> None:
    if trajectory.memory_bytes:
        state.supply.ledgers[node_resource("memory", node)].release(trajectory.holder)
        state.queues.deferrals.clear()
        state.dirty = True


def _add_copy(state: State, trajectory: LiveTrajectory, node: str) -> None:
    trajectory.copies.append(node)
    state.moves.copied.add(trajectory.key)


def drop_copy(state: State, trajectory: LiveTrajectory, node: str) -> None:
    """Release the memory of a copy that is gone."""
    trajectory.copies.remove(node)
    if not trajectory.copies:
        state.moves.copied.discard(trajectory.key)
    _release(state, trajectory, node)


def look_due(state: State) -> None:
    """Have the pass look at all that stays: its time has come."""
    state.moves.due = None
    state.moves.all = True


def held_beside(trajectory: LiveTrajectory) -> list[str]:
    """Return the nodes besides its own on which a trajectory holds memory."""
    if not trajectory.memory_bytes:
        return []
    move = trajectory.move
    if move is None or not move.target:
        return trajectory.copies
    return [*trajectory.copies, move.target]


def why_stays(state: State, trajectory: LiveTrajectory, node: LiveNode) -> str:
    """Return the code for which ``trajectory`` is still on ``node``, which lets it finish."""
    if not moves_from(state, node):
        return NOT_MOVED
    if not _is_idle(trajectory) or trajectory.forks or trajectory.forking:
        return ACTING
    return trajectory.stays or WAITING
