"""The checks of this installation; `CHECKS` lists them in the order in which they are shown.

A further check is a function that returns findings, and an entry of `CHECKS`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from time import time
from typing import Final

from django.conf import settings
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from domain.confinement import APPTAINER, OFF, SANDBOX_CURE, can_sandbox
from domain.errors import TangramError, Unavailable
from domain.inventory import PoolConfig
from managers.cpu.apptainer.program import find_apptainer, forbidden_namespaces
from scheduler.runtime.object_store.objects import ObjectStore, digest_of, object_key
from scheduler.runtime.object_store.store_address import open_store
from tangram_web.doctor.results import Check, CheckResult, CheckState
from tangram_web.lib import bus, oom_scores
from tangram_web.pools.selectors import current_config
from tangram_web.records.models import NodeAvailability, NodeRecord, protection_of

GIB: Final = 2**30
#: Free space of the data folder below which a check warns, and fails.
SCARCE_BYTES, TOO_LITTLE_BYTES = 5 * GIB, GIB // 2
_SHOWN_NAMES: Final = 5
#: Time for the trial of the object store, and the difference of clocks above which signed requests are near to their refusal.
_TRIAL_SECONDS, _SKEW_SECONDS = 30.0, 120.0


def database() -> Iterator[CheckResult]:
    """Answers, and has had all migrations."""
    executor = MigrationExecutor(connection)
    missing = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
    if missing:
        detail = f"{connection.vendor} lacks {missing} migrations"
        yield CheckResult("database", CheckState.FAIL, detail, "run manage.py setup")
    else:
        yield CheckResult("database", CheckState.OK, f"{connection.vendor}, all migrations applied")


def redis() -> Iterator[CheckResult]:
    """Answers."""
    found = bus.redis_client().info("server")
    name = "Valkey" if "valkey_version" in found else "Redis"
    version = found.get("valkey_version") or found["redis_version"]
    yield CheckResult("redis", CheckState.OK, f"{name} {version} answers")


def disk() -> Iterator[CheckResult]:
    """Space for the data folder of this process: database, logs, and the embedded Redis."""
    home = settings.TANGRAM_HOME
    use = shutil.disk_usage(home)
    detail = f"{use.free / GIB:.1f} of {use.total / GIB:.0f} GiB free below {home}"
    if use.free >= SCARCE_BYTES:
        yield CheckResult("disk", CheckState.OK, detail)
        return
    state = CheckState.FAIL if use.free < TOO_LITTLE_BYTES else CheckState.WARN
    yield CheckResult("disk", state, detail, "make space, or move the folder to a larger disk")


def memory() -> Iterator[CheckResult]:
    """Whether the kernel spares Redis when this machine runs out of memory, where Redis runs here."""
    if not settings.TANGRAM_REDIS_URL.startswith("unix:"):
        yield CheckResult("memory", CheckState.OK, "Redis is operated elsewhere")
        return
    score = oom_scores.score_of(int(bus.redis_client().info("server")["process_id"]))
    detail = f"Redis has oom_score_adj {score}, actions have {oom_scores.ACTION}"
    if score < 0:
        yield CheckResult("memory", CheckState.OK, detail)
        return
    cure = (
        "start Tangram as root or with CAP_SYS_RESOURCE, or let the service manager set it"
        " (systemd: OOMScoreAdjust=-500)"
    )
    yield CheckResult("memory", CheckState.WARN, detail, cure)


def pools() -> Iterator[CheckResult]:
    """Whether each pool requires a sandbox, and the networks of its environments."""
    for pool in current_config().pools.values():
        networks = f"networks: {', '.join(pool.networks)}"
        if not pool.needs_sandbox:
            detail = f"{pool.name} has sandbox: {OFF}; {networks}"
            cure = f"{SANDBOX_CURE}; then set sandbox: required for the pool"
            yield CheckResult("pool", CheckState.WARN, detail, cure)
        elif "host" in pool.networks:
            detail = f"{pool.name} requires a sandbox; {networks}"
            cure = "set host_network: false, unless its commands need the network of their node"
            yield CheckResult("pool", CheckState.WARN, detail, cure)
        else:
            yield CheckResult("pool", CheckState.OK, f"{pool.name} requires a sandbox; {networks}")


def nodes() -> Iterator[CheckResult]:
    """The protection that each node gives to commands, in one line."""
    known = current_config().pools
    rows = NodeRecord.objects.exclude(state=NodeAvailability.LOST).order_by("pool", "name")
    for row in rows:
        yield _protection(row, known.get(row.pool) or PoolConfig(row.pool))


def _protection(row: NodeRecord, pool: PoolConfig) -> CheckResult:
    protection = protection_of(row)
    text = row.isolation if protection is None else protection.text
    detail = f"{row.name}: {text}; networks {', '.join(pool.networks)}"
    if can_sandbox(row.isolation, protection):
        lacks = protection is not None and protection.missing
        cure = "see docs/security.md" if lacks else ""
        return CheckResult("protection", CheckState.WARN if lacks else CheckState.OK, detail, cure)
    cure = f"{SANDBOX_CURE}; or set sandbox: off for pool {pool.name}"
    if pool.needs_sandbox:
        detail = f"{detail}; gets no actions, as pool {pool.name} requires a sandbox"
        return CheckResult("protection", CheckState.FAIL, detail, cure)
    return CheckResult("protection", CheckState.WARN, detail, SANDBOX_CURE)


def egress() -> Iterator[CheckResult]:
    """Refusals of the egress proxies: usually a host that ``egress.hosts`` of the pool lacks."""
    for name, text in bus.redis_client().hgetall(bus.keys().workers).items():
        facts = json.loads(text).get("egress") or {}
        if not facts.get("connections") and not facts.get("refused"):
            continue
        node = (name.decode() if isinstance(name, bytes) else name).partition("@")[2]
        detail = f"{node}: {facts['connections']} connections, {facts['refused']} refused"
        if not facts["refused"]:
            yield CheckResult("egress", CheckState.OK, detail)
            continue
        last = facts["last_refusals"][-1]
        detail += (
            f"; last {last['at']}: {last['target']} of {last['environment']}: {last['reason']}"
        )
        cure = "name the host in egress.hosts of the pool, if its commands need it"
        yield CheckResult("egress", CheckState.WARN, detail, cure)


def tokenizers() -> Iterator[CheckResult]:
    """Tokenizers that rollouts may name, in the folders of this machine."""
    from rollout.tokens.tokenizer_folders import TokenizerFolders  # numpy: only this check needs it

    folders = [Path(each) for each in settings.TANGRAM_TOKENIZERS]
    missing = [str(each) for each in folders if not each.is_dir()]
    names = TokenizerFolders(folders).names()
    if missing and folders != [settings.TANGRAM_HOME / "tokenizers"]:
        detail = f"{', '.join(missing)} of TANGRAM_TOKENIZERS is no folder here"
        cure = "make or mount it where rollout workers run, or name another one"
        yield CheckResult("tokenizers", CheckState.WARN, detail, cure)
        return
    there = ", ".join(names[:_SHOWN_NAMES]) or "none; rollouts with a language model need one"
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    where = ", ".join(map(str, folders))
    yield CheckResult("tokenizers", CheckState.OK, f"below {where}: {there}{more}")


def object_store() -> Iterator[CheckResult]:
    """Whether a small object can be written, listed, read and deleted by this part, and the clock of the store."""
    if not settings.TANGRAM_OBJECT_STORE:
        return
    try:
        store = open_store(settings.TANGRAM_OBJECT_STORE)
        assert store is not None
        ahead = asyncio.run(asyncio.wait_for(_tried(store), _TRIAL_SECONDS))
    except (TangramError, TimeoutError) as error:
        what = str(error) or f"it does not answer within {_TRIAL_SECONDS:g} s"
        detail, _, cure = what.partition(": ")
        cure = cure or "look at TANGRAM_OBJECT_STORE and the network"
        yield CheckResult("object_store", CheckState.FAIL, detail, cure)
        return
    detail = f"writes, lists, reads and deletes; its clock differs by {abs(ahead):.0f} s"
    if abs(ahead) < _SKEW_SECONDS:
        yield CheckResult("object_store", CheckState.OK, detail)
    else:
        cure = "let this machine and the store follow a time server: S3 refuses 15 minutes"
        yield CheckResult("object_store", CheckState.WARN, detail, cure)


async def _tried(store: ObjectStore) -> float:
    """Try a store; return by how many seconds its clock is ahead. Raises TangramError for what it does not permit."""
    content = secrets.token_bytes(32)

    async def pieces() -> AsyncIterator[bytes]:
        yield content

    key = object_key("doctor", "trial", (await digest_of(pieces())).sha256)
    began = time()
    await store.put(key, len(content), pieces())
    try:
        facts = await store.head(key)
        listed = [each.key async for each in store.list("doctor")]
        if (
            facts is None
            or key not in listed
            or [each async for each in store.get(key)] != [content]
        ):
            raise Unavailable("what was written is not read: give the address of one bucket")
    finally:
        await store.delete(key)
    return facts.modified_at - began


def apptainer() -> Iterator[CheckResult]:
    """Apptainer of this machine, where it is installed or the node is to use it."""
    named = settings.TANGRAM_APPTAINER.get("apptainer_program", "")
    is_wanted = settings.TANGRAM_NODE_ISOLATION == APPTAINER
    if not is_wanted and shutil.which(named or "apptainer") is None:
        return
    bad = CheckState.FAIL if is_wanted else CheckState.WARN
    try:
        found = find_apptainer(named)
    except Unavailable as error:
        detail, _, cure = str(error).partition(": ")
        yield CheckResult("apptainer", bad, detail, cure)
        return
    detail = f"apptainer {found.version_text} at {found.program}"
    if why := forbidden_namespaces():
        what, _, cure = why.partition(": ")
        yield CheckResult(
            "apptainer", bad, f"{detail}; user namespaces are forbidden: {what}", cure
        )
    elif found.one_user:
        what, _, cure = found.one_user.partition(": ")
        yield CheckResult("apptainer", CheckState.WARN, f"{detail}; {what}", cure)
    else:
        said = f"{detail}, --fakeroot with all users of an image, user namespaces permitted"
        yield CheckResult("apptainer", CheckState.OK, said)


CHECKS: Final[tuple[Check, ...]] = (
    database, redis, disk, memory, object_store, pools, nodes, apptainer, egress, tokenizers,
)  # fmt: skip
