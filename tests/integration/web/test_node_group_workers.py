"""Node workers of a group are started with what they need, and drains of the keeper are the configuration's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import LaunchError
from tangram_web.lib.orm_calls import in_thread
from tangram_web.node_groups_role import ConfiguredDrains, worker_command
from tangram_web.pools.selectors import current_config

SPEC = NodeGroupSpec("processes", "big", count=1, cpus=4, memory_bytes=2**30, isolation="bwrap")


def test_a_worker_of_this_machine_shares_its_home() -> None:
    command, variables = worker_command("g-1", SPEC)
    assert command[1:5] == ("-m", "celery", "-A", "tangram_web.celery")
    assert variables["TANGRAM_ROLE"] == "node"
    assert (variables["TANGRAM_NODE"], variables["TANGRAM_NODE_POOL"]) == ("g-1", "big")
    assert (variables["TANGRAM_NODE_CPUS"], variables["TANGRAM_NODE_RESERVED_CPUS"]) == ("4", "")
    assert variables["TANGRAM_NODE_MEMORY_BYTES"] == str(2**30)
    assert (variables["TANGRAM_NODE_GPUS"], variables["TANGRAM_NODE_ISOLATION"]) == ("0", "bwrap")
    assert "TANGRAM_HOME" in variables
    assert "TANGRAM_SECRET_KEY" not in variables


def test_a_worker_of_another_machine_gets_the_settings_of_nodes_and_the_key(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TANGRAM_REDIS_URL = "redis://:secret@10.0.0.1:6379/0"
    monkeypatch.setenv("TANGRAM_DISK_FULL_BYTES", "5")
    monkeypatch.setenv("TANGRAM_ROLE", "projector")
    _, variables = worker_command("g-1", NodeGroupSpec("ssh", count=1, gpus=2))
    assert variables["TANGRAM_REDIS_URL"] == settings.TANGRAM_REDIS_URL
    assert variables["TANGRAM_SECRET_KEY"] == settings.SECRET_KEY
    assert (variables["TANGRAM_DISK_FULL_BYTES"], variables["TANGRAM_ROLE"]) == ("5", "node")
    assert variables["TANGRAM_NODE_GPUS"] == ""  # those that the machine has
    assert "TANGRAM_HOME" not in variables


def test_a_redis_that_other_machines_cannot_reach_is_named_without_its_password(
    settings: Any,
) -> None:
    settings.TANGRAM_REDIS_URL = "unix://:secret@/run/redis.sock"
    with pytest.raises(LaunchError, match="set TANGRAM_REDIS_URL to redis://") as raised:
        worker_command("g-1", NodeGroupSpec("ssh", count=1))
    assert "secret" not in str(raised.value)
    worker_command("g-1", SPEC)


def test_a_worker_gets_the_user_of_its_node_where_there_are_users(
    settings: Any, tmp_path: Path
) -> None:
    settings.TANGRAM_REDIS_URL = "redis://tangram-projector:ours@10.0.0.1:6379/0"
    settings.TANGRAM_REDIS_USERS = str(tmp_path)
    settings.TANGRAM_KEY_PREFIX = "tangram"
    (tmp_path / "tangram-node-g-1.password").write_text("its/own\n")
    _, variables = worker_command("g-1", NodeGroupSpec("ssh", count=1))
    assert variables["TANGRAM_REDIS_URL"] == "redis://tangram-node-g-1:its%2Fown@10.0.0.1:6379/0"
    with pytest.raises(LaunchError, match=r"redis_users .* --node g-2") as raised:
        worker_command("g-2", SPEC)
    assert "ours" not in str(raised.value)


@pytest.mark.django_db(transaction=True)
async def test_drains_of_the_keeper_let_trajectories_finish_and_end(
    defaults: None, redis_bus: Any
) -> None:
    drains = ConfiguredDrains()
    await drains.drain("g-1", "node group g: it leaves")
    assert await drains.reasons() == {"g-1": "node group g: it leaves"}
    config = await in_thread(current_config)()
    assert config.drained_nodes == config.finishing_nodes == {"g-1"}
    await drains.resume("g-1")
    assert await drains.reasons() == {}
