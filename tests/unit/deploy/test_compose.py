"""docker-compose.yml says what an operator relies on, and names only settings that exist."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.architecture.tree import ROOT

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name for name, service in SERVICES.items() if service.get("image") == "tangram"}
#: Members of a service that the compose specification knows, as far as we use them.
MEMBERS = {
    "build", "command", "cpu_shares", "cpuset", "depends_on", "environment", "healthcheck", "image", "ports", "profiles",
    "restart", "security_opt", "stop_grace_period", "user", "volumes",
}  # fmt: skip
#: Read by uvicorn, not by us.
FOREIGN = {"FORWARDED_ALLOW_IPS", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
#: What each part gets where compose has an answer of its own, or what is no concern of a container.
NOT_TAKEN = {
    "TANGRAM_HOME", "TANGRAM_DEBUG", "TANGRAM_SECRETS_DIRECTORY", "TANGRAM_DOCKER_", "TANGRAM_API_SECRET_",
    "TANGRAM_ENVIRONMENT_", "TANGRAM_DISK_", "TANGRAM_REDIS_PACKAGE", "TANGRAM_ROLLOUT_WORKER",
    "TANGRAM_APPTAINER_",  # the image has bubblewrap, not Apptainer
    # All parts of compose have one password of Redis: nodes have no users, and join by no token.
    "TANGRAM_REDIS_USERS", "TANGRAM_JOIN_REDIS_URL",
    # Compose has one Redis, without a replica.
    "TANGRAM_REDIS_WAIT_REPLICAS", "TANGRAM_REDIS_WAIT_MS",
}  # fmt: skip


def settings_read() -> set[str]:
    """Every variable that the product reads from its environment."""
    sources = [
        path.read_text()
        for package in ("tangram_web", "scheduler", "managers")
        for path in (ROOT / package).rglob("*.py")
    ]
    return set(re.findall(r"\"((?:TANGRAM_[A-Z_]+)|DATABASE_URL)\"", "\n".join(sources)))


def test_every_part_of_the_system_is_there() -> None:
    assert set(SERVICES) == {
        "redis", "postgres", "setup", "web", "scheduler", "projector", "node", "jobs", "rollout",
        "prometheus", "grafana",
    }  # fmt: skip
    assert {"setup", "web", "scheduler", "projector", "node", "jobs", "rollout"} == OURS


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_has_only_members_that_compose_knows(name: str) -> None:
    assert set(SERVICES[name]) <= MEMBERS
    assert "image" in SERVICES[name]


@pytest.mark.parametrize("name", sorted(OURS | {"redis", "postgres"}))
def test_only_the_node_runs_on_the_cores_of_actions(name: str) -> None:
    service = SERVICES[name]
    if name == "node":
        assert (service["cpuset"], service["cpu_shares"]) == ("", 1024)
        assert "TANGRAM_SHARED_CPUS" in service["environment"]["TANGRAM_NODE_RESERVED_CPUS"]
    else:
        assert service["cpuset"] == "${TANGRAM_SHARED_CPUS:-}"
        assert service["cpu_shares"] < 1024


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_service_sets_only_variables_that_are_read(name: str) -> None:
    assert set(SERVICES[name]["environment"]) <= settings_read() | FOREIGN


def test_every_setting_can_be_given_in_the_environment_file() -> None:
    given = {variable for name in OURS for variable in SERVICES[name]["environment"]}
    in_settings = re.findall(
        r"\"(TANGRAM_[A-Z_]+)\"", (ROOT / "tangram_web" / "settings.py").read_text()
    )
    assert set(in_settings) - NOT_TAKEN <= given


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_service_has_the_settings_that_it_cannot_guess(name: str) -> None:
    given = SERVICES[name]["environment"]
    assert {"TANGRAM_REDIS_URL", "DATABASE_URL", "TANGRAM_SECRET_KEY"} <= set(given)


def test_the_roles_are_those_of_the_workers() -> None:
    text = (ROOT / "tangram_web" / "celery.py").read_text()
    known = set(re.findall(r"^    \"(\w+)\": _\w+,$", text, re.MULTILINE))
    roles = {SERVICES[name]["environment"].get("TANGRAM_ROLE") for name in OURS} - {None}
    # The projector keeps fleets and node groups, unless workers with these roles do (docs/decisions/0174).
    assert roles == known - {"fleets", "groups"}
    assert "projector" in roles


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"setup"}))
def test_a_lasting_service_restarts_and_has_a_health_check(name: str) -> None:
    assert SERVICES[name]["restart"] == "unless-stopped"
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] in {"CMD", "CMD-SHELL"}
    assert {"interval", "timeout", "retries"} <= set(check)


def test_everything_waits_for_what_it_needs() -> None:
    for name in OURS - {"setup"}:
        needs = SERVICES[name]["depends_on"]
        assert needs["redis"]["condition"] == "service_healthy"
        assert needs["postgres"]["condition"] == "service_healthy"
        assert needs["setup"]["condition"] == "service_completed_successfully"


def test_the_check_of_the_database_is_not_fooled_by_a_server_that_only_sets_it_up() -> None:
    assert "--host" in SERVICES["postgres"]["healthcheck"]["test"]


def test_the_client_of_the_image_is_as_new_as_the_server_that_it_dumps() -> None:
    """Debian 13 has PostgreSQL 17; a client refuses a newer server, an older one refuses its dump."""
    base = re.search(r"^FROM (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert base is not None
    assert base[1].endswith("trixie")
    assert SERVICES["postgres"]["image"] == "postgres:17"


def test_redis_writes_to_disk_before_it_answers_and_forgets_nothing() -> None:
    words = SERVICES["redis"]["command"]
    flags = dict(zip(words[1::2], words[2::2], strict=True))
    assert flags["--appendonly"] == "yes"
    assert flags["--appendfsync"] == "always"
    assert flags["--maxmemory-policy"] == "noeviction"
    assert "REDIS_PASSWORD" in flags["--requirepass"]


def test_data_live_in_named_volumes() -> None:
    named = set(COMPOSE["volumes"])
    used = {v.partition(":")[0] for s in SERVICES.values() for v in s.get("volumes", ())}
    files = {name for name in used if name.startswith("./")}
    assert used - files == named
    assert all((ROOT / name).exists() for name in files)


def test_no_service_runs_as_root() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER tangram$", dockerfile, re.MULTILINE)
    for name in set(SERVICES) - OURS:
        assert SERVICES[name]["user"] not in {"root", "0"}


def test_no_secret_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for name in ("REDIS_PASSWORD", "POSTGRES_PASSWORD", "TANGRAM_SECRET_KEY"):
        uses = re.findall(rf"\$\{{{name}[^}}]*\}}", text)
        assert uses
        assert all(":?" in use for use in uses)


def test_nothing_gets_into_the_image_unasked() -> None:
    """A folder that is run from has an .env with passwords, and backups."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    taken = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert {*tools["importlinter"]["root_packages"], "frontend", "manage.py"} <= taken
    assert all((ROOT / name).exists() for name in taken)
    assert not {".env", "deploy", "."} & taken


def test_files_that_the_image_copies_exist() -> None:
    for source in re.findall(r"^COPY (\S+) ", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        assert (ROOT / source).exists()


def test_the_image_serves_with_an_end_before_docker_kills_it() -> None:
    """Streams and waiting requests have no end of their own."""
    patience = re.search(
        r'"--timeout-graceful-shutdown", "(\d+)"', (ROOT / "Dockerfile").read_text()
    )
    assert patience is not None
    assert int(patience[1]) < int(SERVICES["web"]["stop_grace_period"].removesuffix("s"))


def test_prometheus_asks_under_a_name_that_is_let_in() -> None:
    """Whatever the operator names: what Prometheus asks for is added."""
    configuration = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    targets = configuration["scrape_configs"][0]["static_configs"][0]["targets"]
    hosts = SERVICES["web"]["environment"]["TANGRAM_ALLOWED_HOSTS"]
    outside = re.sub(r"\$\{[^}]*\}", "", hosts).split(",")
    assert {target.partition(":")[0] for target in targets} <= set(outside)
