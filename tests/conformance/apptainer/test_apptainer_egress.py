"""Environments by Apptainer obey the rules of ``network: egress``."""

from __future__ import annotations

from pathlib import Path

import pytest

from domain.ports import DriverContext
from managers.cpu.egress.proxy import EgressProxy
from managers.cpu.process import ProcessDriver
from tests.conformance.egress import (
    CHANGE,
    DIRECT,
    PYTHON,
    Door,
    EgressConformance,
    ProxyingDriver,
    naming,
    origin,
    secure,
)
from tests.conformance.egress_origin import Origin
from tests.conformance.isolations import stand_in

__all__ = ["origin", "secure"]

pytestmark = pytest.mark.timeout(600)
_PROXY = "the proxy of the node decides, which has the same rules for every isolation"
#: Test → why it says nothing about Apptainer; process and container environments have it.
LEFT_OUT = {
    "test_an_allowed_name_at_a_private_address_is_refused": _PROXY,
    "test_a_second_answer_of_dns_does_not_replace_the_checked_address": _PROXY,
    "test_the_bytes_of_an_environment_are_bounded_over_its_commands": _PROXY,
    "test_the_connections_of_an_environment_are_bounded": _PROXY,
    "test_pip_installs_through_a_tunnel": "a tunnel is more bytes of the same connections to the proxy",
}


class TestEgressOfApptainer(EgressConformance):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    def make(self, proxy: EgressProxy) -> ProxyingDriver:
        settings = {
            "isolation": "apptainer", "apptainer_program": str(stand_in(self.directory)),
        }  # fmt: skip
        return ProcessDriver(DriverContext("n1", self.directory / "state", {}, settings), proxy)

    async def test_the_command_cannot_change_its_network(self, door: Door, origin: Origin) -> None:
        """Its programs are root of a namespace with all capabilities, so they change a network that leads nowhere."""
        door.rules = naming(origin)

        assert (await door.run(PYTHON, "-c", CHANGE)).stdout == "changed\n"
        result = await door.run(PYTHON, "-c", DIRECT % origin.port)

        assert "reached" not in result.stdout
        assert len(result.stdout.splitlines()) == 3
        assert origin.asked == []


for _name in LEFT_OUT:
    setattr(TestEgressOfApptainer, _name, None)


def test_what_is_left_out_is_still_a_test() -> None:
    assert [name for name in LEFT_OUT if not hasattr(EgressConformance, name)] == []
