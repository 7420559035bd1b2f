"""A new policy is one module of `scheduler.core.policies`: names and validation follow it."""

from __future__ import annotations

import sys

import pytest

import scheduler.core.policies
from domain.errors import InvalidRequest
from domain.inventory import PoolConfig
from domain.policies import known_policies, parse_policy
from scheduler.core.policies import registry
from scheduler.core.policies.registry import policy_named
from tests.builders import a_config, a_node, an_action
from tests.scenario import Scenario

NEWEST_FIRST = '''
"""Policy ``newest(k)``: the newest head first, each grant at most k units."""

from dataclasses import dataclass

from scheduler.core.policies.fixed import Fixed
from scheduler.core.policies.registry import register


@register("newest(k)")
@dataclass(frozen=True)
class NewestFirst(Fixed):
    @property
    def name(self):
        return f"newest({self.parallelism})"

    def rank(self, rank):
        priority, turn, arrival = rank
        return priority, turn, -arrival
'''


@pytest.fixture
def newest(tmp_path, monkeypatch):
    """One more file in the package of policies, which is scanned again."""
    registry.policy_forms()
    (tmp_path / "newest.py").write_text(NEWEST_FIRST)
    path = [*scheduler.core.policies.__path__, str(tmp_path)]
    monkeypatch.setattr(scheduler.core.policies, "__path__", path)
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    registry._import_policies.cache_clear()
    yield
    registry._import_policies.cache_clear()
    sys.modules.pop("scheduler.core.policies.newest", None)


def test_its_name_is_known_wherever_names_are_checked(newest):
    assert "newest(k)" in known_policies()
    assert parse_policy("newest(2)").parameter == 2
    assert policy_named("newest(2)").name == "newest(2)"


def test_a_pool_schedules_with_it(newest):
    config = a_config(pools=[PoolConfig("default", "newest(2)")])
    scenario = Scenario(a_node("n1", cpus=2), config=config)
    scenario.submit(an_action("running", cost={"cpu": 2}))
    scenario.submit(an_action("old", cost={"cpu": 1}), an_action("new", cost={"cpu": [1, 2, 4]}))

    scenario.finish("running")

    assert scenario.holding() == {"new"}
    assert scenario.live("new").allocations[0].amount == 2000


def test_without_the_file_the_name_is_unknown():
    with pytest.raises(InvalidRequest, match="is no policy; known are"):
        policy_named("newest(2)")
