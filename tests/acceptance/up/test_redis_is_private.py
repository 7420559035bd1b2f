"""Commands of actions reach neither Redis' socket nor its password; operators see its version."""

from __future__ import annotations

import pytest

from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Looks everywhere where the socket, the password or an address could be.
SEARCH = """
cat "$0/redis/password" "$0/redis/server.conf" "$0/client.json"
ls -la "$0" "$0/redis"
find / -xdev \\( -name redis.sock -o -name server.conf -o -name password \\) 2>/dev/null
cat /proc/*/environ /proc/*/cmdline /proc/net/unix
env
echo end
"""


def test_a_sandboxed_command_finds_neither_socket_nor_password(tangram: Tangram) -> None:
    folder = tangram.home / "redis"
    password = (folder / "password").read_text().strip()
    assert (folder / "password").stat().st_mode & 0o777 == 0o600

    done = tangram.post(
        "/api/v1/actions?wait=60",
        {
            "task": "t",
            "kind": "exec",
            "cost": {"cpu": 1},
            "exec": {"command": ["sh", "-c", SEARCH, str(tangram.home)]},
        },
    )

    found = done["result"]["stdout"] + done["result"]["stderr"]
    assert done["result"]["stdout"].endswith("end\n")
    assert password not in found
    for secret in (str(folder / "redis.sock"), "TANGRAM_REDIS_URL=", "unix://"):
        assert secret not in found
    assert "".join(tangram.said).count(password) == 0

    status = tangram.get("/api/v1/status")
    assert status["redis"]["standing"] == "current", status["redis"]
