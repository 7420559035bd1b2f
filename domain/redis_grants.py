"""Grants of each role in Redis: the keys, channels and commands that its code uses.

Rules
1. A node reads its own commands alone, and writes its own reports (`Keys.reports`), sign of life and door. It has no access to the
   inbox: the leader moves its reports there, those that name the node.
2. What nodes share they may add to and not read: signs of life for display, letters, replies, pieces of responses. Exceptions are the
   identity of the folder of bodies, what snapshots and stored images there are, and the signs of life, which the check of a container reads.
3. Only loops write the journal, the snapshot, the epoch and the streams of nodes.
4. What makes users of Redis could make one that may do everything: the admin's address is of an operator. The keeper of node access
   alone may, too: a process that serves nothing and reads two hashes (docs/decisions/0310).
5. The monitoring reads signs of life and lengths, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from domain.redis_access import RedisGrant, RedisRole, check_name
from domain.redis_keys import Keys

_SCRIPTS: Final = ("eval", "evalsha", "script|load")
#: A queue of Celery has a list for each priority, whose name ends so.
_PRIORITIES: Final = "\x06\x16[0-9]"


def grants_of(role: RedisRole, keys: Keys, node: str = "") -> list[RedisGrant]:
    """Return the grants of a role; ``node``: the name, for a node.

    Raises InvalidRequest for a prefix or a name that is a pattern.
    """
    check_name(keys.prefix, "/prefix")
    if role is RedisRole.NODE:
        check_name(node, "/node")
        return _of_node(keys, node)
    return _OF_ROLE[role](keys)


def _of_node(keys: Keys, node: str) -> list[RedisGrant]:
    return [
        RedisGrant(
            commands=("xread", "xrange", "xtrim", "get", "set", "del"),
            both=(keys.commands(node, "*"),),
        ),
        RedisGrant(commands=("xadd",), write=(keys.reports(node),)),
        RedisGrant(commands=("sadd",), write=(keys.reporting_nodes,)),
        RedisGrant(commands=("set",), write=(keys.alive(node),)),
        RedisGrant(commands=("hset",), write=(keys.workers,)),
        RedisGrant(commands=("hgetall",), read=(keys.workers,)),
        RedisGrant(
            commands=("get", "set", "del"),
            both=(keys.node_door(node), keys.snapshot_door(node)),
        ),
        RedisGrant(commands=("get",), read=(keys.snapshot_door("*"),)),
        RedisGrant(commands=("hkeys",), read=(keys.dead_letters,)),
        RedisGrant(commands=("hsetnx",), write=(keys.dead_letters,)),
        RedisGrant(commands=("get", "set"), both=(keys.body_store,)),
        RedisGrant(commands=("hget", "hsetnx"), both=(keys.snapshots, keys.snapshot_copies)),
        RedisGrant(commands=("exists",), read=(f"{keys.snapshots}:removed:*",)),
        RedisGrant(commands=("hget",), read=(keys.stored_images,)),
        RedisGrant(commands=("getdel", "set"), both=(keys.blob("*"),)),
        RedisGrant(commands=("xadd", "expire", "del", "xlen"), both=(keys.response_stream("*"),)),
        RedisGrant(commands=("publish",), channels=(keys.replies("*"),)),
        *_queue(keys, RedisRole.NODE),
    ]


def _of_loop(keys: Keys) -> list[RedisGrant]:
    return [
        RedisGrant(
            commands=(
                *_SCRIPTS, "get", "set", "del", "mget", "getrange", "exists", "expire", "hset", "hget", "hmget", "hdel", "hkeys",
                "hgetall", "hexists", "hsetnx", "xadd", "xdel", "xlen", "xrange", "xrevrange", "xread", "xtrim", "llen", "lrange",
                "lpop", "rpush", "smembers", "sdiff", "sismember", "rename",
            ),
            both=(
                keys.epoch, keys.leader, keys.journal, keys.inbox, keys.arrivals, keys.arrivals_of("*"), keys.snapshot,
                keys.offered_snapshot, keys.snapshot_offer, keys.hung_pass, keys.config, keys.capacity, keys.project_loads, keys.dead_letters, keys.positions,
                keys.held, keys.workers, keys.commands("*", "*"), keys.reports("*"), keys.revoked_nodes,
            ),
            read=(
                keys.questions, keys.alive("*"), keys.rollout_worker_alive("*"), keys.reporting_nodes,
            ),
        ),
        RedisGrant(commands=("publish",), channels=(keys.replies("*"),)),
        RedisGrant(commands=("config|get", "info")),
        *_queue(keys, RedisRole.LOOP),
    ]  # fmt: skip


def _of_gateway(keys: Keys) -> list[RedisGrant]:
    """Return the grants of what serves the API or hosts rollouts: it submits, asks, and follows the journal."""
    return [
        RedisGrant(
            commands=(
                *_SCRIPTS, "get", "set", "del", "mget", "exists", "expire", "hset", "hget", "hmget", "hgetall", "hdel", "hkeys",
                "hvals", "hlen", "hexists", "hsetnx", "hincrby", "hincrbyfloat", "xadd", "xlen", "xrange", "xrevrange", "xread",
                "xdel", "rpush", "llen", "zadd", "zrem", "zrange", "zremrangebyscore", "smembers", "sadd", "watch",
            ),
            both=(
                keys.inbox, keys.arrivals, keys.arrivals_of("*"), keys.project_loads, keys.questions, keys.barrier, keys.body_store, "",
                keys.idempotency("*", "*"), keys.response_stream("*"), keys.blob("*"), keys.workers, keys.snapshots,
                keys.snapshot_copies, f"{keys.snapshots}:removed:*", keys.stored_images, keys.facade_secret, keys.facade_records("*"), keys.facade_timed("*", "*"),
                keys.facade_claims("*", "*"), keys.facade_claimant("*"), keys.batch("*"), keys.batch_pulls("*"),
                keys.batches("*"), keys.batch_projects, keys.batch_totals,
            ),
            read=(
                keys.journal, keys.capacity, keys.leader, keys.epoch, keys.positions, keys.dead_letters, keys.node_doors,
                keys.node_door("*"), keys.reporting_nodes, keys.rollout_doors, keys.row_doors,
                keys.rollout_worker_alive("*"), keys.fleet_reports,
            ),
        ),
        RedisGrant(
            commands=("subscribe", "unsubscribe", "publish"), channels=(keys.replies("*"),)
        ),
    ]  # fmt: skip


def _of_web(keys: Keys) -> list[RedisGrant]:
    return [
        *_of_gateway(keys),
        RedisGrant(
            commands=(*_SCRIPTS, "get", "set", "xadd"), both=(keys.config, keys.inbox)
        ),
        RedisGrant(
            commands=(*_SCRIPTS, "hget", "hset", "hdel", "sadd", "xadd"),
            both=(keys.node_access, keys.revoked_nodes, keys.inbox),
        ),
        RedisGrant(commands=("hget", "exists"), read=(keys.node_access_done, keys.access_keeper)),
        RedisGrant(
            commands=("hset", "hdel", "hget", "hgetall", "hincrby", "hincrbyfloat", "zadd"),
            both=(keys.web_requests, keys.acknowledgements, keys.job_runs, f"{keys.prefix}:watched"),
        ),
        RedisGrant(
            commands=(
                "get", "mget", "hget", "hgetall", "hlen", "exists", "zrange", "zrangebyscore", "zrevrangebyscore", "zrevrange",
                "zscore",
            ),
            read=(
                keys.problems, keys.metrics, keys.family_times, keys.resource_trends, *_histories(keys), *_frames(keys),
                keys.node_group_reports, keys.alive("*"),
            ),
        ),
        RedisGrant(commands=("info", "pubsub|channels")),
        RedisGrant(
            commands=("subscribe", "unsubscribe", "publish"), channels=(f"{keys.prefix}:live*",)
        ),
        _broker(keys),
    ]  # fmt: skip


def _of_projector(keys: Keys) -> list[RedisGrant]:
    """Return the grants of the projector, with the keepers and the jobs that it hosts where no other worker does."""
    return [
        RedisGrant(
            commands=(
                *_SCRIPTS, "get", "set", "del", "mget", "exists", "hget", "hset", "hdel", "hgetall", "zadd", "zrem", "zrange",
                "zrangebyscore", "zrevrange", "zrevrangebyscore", "zremrangebyscore", "zscore",
            ),
            both=(
                keys.positions, keys.workers, keys.metrics, keys.family_times, keys.problems, keys.problem_judge,
                keys.resource_trends, keys.acknowledgements, *_histories(keys), *_frames(keys),
            ),
        ),
        RedisGrant(
            commands=("xread", "xrange", "xrevrange", "hexists", "hlen", "hgetall", "get"),
            read=(keys.journal, keys.dead_letters, keys.leader, keys.epoch, keys.capacity, keys.inbox),
        ),
        RedisGrant(commands=_SCRIPTS, both=(keys.inbox,)),
        RedisGrant(commands=("hgetall",), read=(keys.snapshots, keys.snapshot_copies)),
        RedisGrant(commands=("hvals",), read=(keys.stored_images,)),
        RedisGrant(commands=("hdel",), both=(keys.snapshot_copies,)),
        RedisGrant(commands=("publish",), channels=(f"{keys.prefix}:live*",)),
        RedisGrant(commands=("pubsub|channels", "info")),
        *_of_fleets(keys),
        *_of_groups(keys),
        *_of_jobs(keys),
    ]  # fmt: skip


def _of_jobs(keys: Keys) -> list[RedisGrant]:
    return [
        RedisGrant(commands=("hget", "hset", "hgetall", "get"), both=(keys.workers, keys.job_runs)),
        RedisGrant(
            commands=("xrange", "xrevrange", "xread", "get"), read=(keys.journal, keys.capacity)
        ),
        _broker(keys),
    ]


def _of_rollout(keys: Keys) -> list[RedisGrant]:
    return [
        *_of_gateway(keys),
        RedisGrant(commands=("set", "del"), both=(keys.rollout_worker_alive("*"),)),
        RedisGrant(commands=(*_SCRIPTS, "hvals", "del", "hset"), both=(keys.rollout_incarnations,)),
        RedisGrant(commands=("hset", "hget", "hdel"), both=(keys.rollout_doors, keys.row_doors)),
        *_queue(keys, RedisRole.ROLLOUT),
    ]


def _of_fleets(keys: Keys) -> list[RedisGrant]:
    return [
        RedisGrant(
            commands=(
                *_SCRIPTS, "get", "set", "del", "exists", "hset", "hdel", "hget", "hkeys", "hgetall", "hmget", "xadd", "rpush",
                "llen",
            ),
            both=(
                keys.fleet_keeper, keys.fleet_reports, keys.fleet_predictions, keys.inbox, keys.questions, keys.project_loads,
                keys.arrivals, keys.arrivals_of("*"), "",
            ),
        ),
        RedisGrant(
            commands=("get", "xrange", "xrevrange", "xread", "hget", "hkeys", "smembers", "mget"),
            read=(
                keys.journal, keys.capacity, keys.config, keys.node_doors, keys.node_door("*"), keys.reporting_nodes,
                keys.dead_letters,
            ),
        ),
        RedisGrant(
            commands=("subscribe", "unsubscribe"), channels=(keys.replies("*"),)
        ),
        *_queue(keys, RedisRole.FLEETS),
    ]  # fmt: skip


def _of_groups(keys: Keys) -> list[RedisGrant]:
    return [
        RedisGrant(
            commands=(
                *_SCRIPTS, "get", "set", "del", "exists", "hset", "hdel", "hget", "hkeys", "hgetall", "hmget", "xadd", "rpush",
                "llen",
            ),
            both=(
                keys.node_group_keeper, keys.node_group_reports, keys.inbox, keys.questions, keys.project_loads,
                keys.arrivals, keys.arrivals_of("*"), "",
            ),
        ),
        RedisGrant(commands=("get", "exists"), read=(keys.config, keys.capacity)),
        RedisGrant(
            commands=("subscribe", "unsubscribe"), channels=(keys.replies("*"),)
        ),
        *_queue(keys, RedisRole.GROUPS),
    ]  # fmt: skip


def _of_access(keys: Keys) -> list[RedisGrant]:
    return [
        RedisGrant(commands=("acl|setuser", "acl|deluser", "acl|users", "acl|list")),
        RedisGrant(commands=(*_SCRIPTS, "get", "set", "del"), both=(keys.access_keeper,)),
        RedisGrant(commands=("hgetall",), read=(keys.node_access,)),
        RedisGrant(commands=("hgetall", "hset", "hdel"), both=(keys.node_access_done,)),
        RedisGrant(commands=("smembers", "srem"), both=(keys.revoked_nodes,)),
        RedisGrant(
            commands=("del",),
            both=(keys.reports("*"), keys.node_door("*"), keys.snapshot_door("*"), keys.alive("*")),
        ),
    ]


def _of_monitoring(keys: Keys) -> list[RedisGrant]:
    return [
        RedisGrant(
            commands=("get", "hgetall", "hlen", "xlen", "smembers"),
            read=(
                keys.leader, keys.epoch, keys.workers, keys.positions, keys.job_runs, keys.metrics, keys.web_requests,
                keys.reporting_nodes,
            ),
        ),
        RedisGrant(commands=("xlen",), read=(keys.inbox, keys.journal, keys.questions)),
        RedisGrant(commands=("hlen",), read=(keys.dead_letters,)),
        RedisGrant(commands=("info", "slowlog|get", "latency|latest", "dbsize")),
    ]  # fmt: skip


def _of_admin(keys: Keys) -> list[RedisGrant]:
    users = (
        "acl|setuser",
        "acl|deluser",
        "acl|getuser",
        "acl|list",
        "acl|users",
        "acl|save",
        "acl|load",
    )
    return [
        RedisGrant(
            commands=("@read", "@write", "@scripting", "@transaction", "-flushall", "-flushdb", "-swapdb", "-function"),
            both=(f"{keys.prefix}:*", ""),
        ),
        RedisGrant(commands=("info", "config|get", *users)),
        RedisGrant(
            commands=("publish", "subscribe", "unsubscribe", "pubsub|channels"),
            channels=(f"{keys.prefix}:*",),
        ),
    ]  # fmt: skip


def _histories(keys: Keys) -> tuple[str, ...]:
    return f"{keys.prefix}:history:*", keys.histories, keys.scenes


def _frames(keys: Keys) -> tuple[str, ...]:
    return f"{keys.prefix}:frame:*", f"{keys.prefix}:watched"


def _queue(keys: Keys, role: RedisRole) -> list[RedisGrant]:
    """Return the grants of a worker of Celery without jobs: it waits at a queue of its own, which stays empty."""
    jobs, queue = f"{keys.prefix}:jobs:", f"{keys.prefix}:jobs:{role}"
    bindings = f"{jobs}_kombu.binding.{role}", f"{jobs}_kombu.binding_permanent.{role}"
    return [
        RedisGrant(commands=("brpop", "llen"), both=(queue, queue + _PRIORITIES)),
        RedisGrant(commands=("sadd",), write=bindings),
    ]


def _broker(keys: Keys) -> RedisGrant:
    """Return the grant of what runs or enqueues jobs."""
    return RedisGrant(
        commands=(
            "brpop", "lpush", "rpush", "rpop", "llen", "sadd", "smembers", "srem", "del", "zadd", "zrem", "hset", "hget", "hdel",
            "zrange", "zrevrangebyscore", "watch", "get", "set", *_SCRIPTS,
        ),
        both=(f"{keys.prefix}:jobs:*",),
    )  # fmt: skip


_OF_ROLE: Final[Mapping[RedisRole, Callable[[Keys], list[RedisGrant]]]] = {
    RedisRole.LOOP: _of_loop,
    RedisRole.WEB: _of_web,
    RedisRole.PROJECTOR: _of_projector,
    RedisRole.JOBS: _of_jobs,
    RedisRole.ROLLOUT: _of_rollout,
    RedisRole.FLEETS: _of_fleets,
    RedisRole.GROUPS: _of_groups,
    RedisRole.ACCESS: _of_access,
    RedisRole.MONITORING: _of_monitoring,
    RedisRole.ADMIN: _of_admin,
}
