"""The manifests of deploy/kubernetes have the published schemas, and agree with docker-compose.yml and with the launcher."""

from __future__ import annotations

import functools
import re
from typing import Any
from urllib.parse import urlsplit

import pytest

from domain.node_groups import NodeGroupSpec
from managers.launch.kubernetes_cluster import CLUSTER_PERMISSIONS, PERMISSIONS
from managers.launch.kubernetes_objects import CONTAINER, INSTANCE, stateful_set
from managers.launch.launcher import LaunchOrder
from scheduler.runtime.object_store.store_address import parse_bucket
from tangram_web.node_groups_role import worker_command
from tests.architecture.tree import ROOT
from tests.kubernetes_schemas import VERSIONS, errors
from tests.kustomized import built, read
from tests.unit.deploy.test_compose import FOREIGN, OURS, SERVICES, settings_read

#: The sources are searched once.
variables_read = functools.cache(settings_read)
FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("bundled", "external")
#: Part of Kubernetes → service of docker-compose.yml.
PARTS = {"web": "web", "loop": "scheduler", "projector": "projector", "jobs": "jobs", "rollout": "rollout", "node": "node", "setup": "setup"}  # fmt: skip
#: Made from the address of a pod, and of the login link.
MADE_HERE = {"POD_IP", "TANGRAM_URL"}


@functools.cache
def overlay(name: str) -> tuple[dict[str, Any], ...]:
    return tuple(built(FOLDER / "overlays" / name))


@functools.cache
def privileged() -> tuple[dict[str, Any], ...]:
    return tuple(built(FOLDER / "components" / "privileged-nodes", built(FOLDER / "base")))


@functools.cache
def stored() -> dict[tuple[str, str], dict[str, Any]]:
    """Return kind and name → object, with the component of the object store."""
    base = built(FOLDER / "base")
    found = built(FOLDER / "components" / "object-store", base)
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def workloads(name: str) -> dict[str, dict[str, Any]]:
    """Return component → its Deployment, StatefulSet or Job."""
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each
        for each in overlay(name)
        if each["kind"] in ("Deployment", "StatefulSet", "Job")
    }


def of_kind(name: str, kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in overlay(name) if each["kind"] == kind}


def pod(workload: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = workload["spec"]["template"]["spec"]
    return found


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod(workload)["containers"]
    return dict(found)


def words(command: list[str]) -> str:
    """Return a command as one line; compose writes ``$$`` for ``$``, and folds lines itself."""
    return " ".join(" ".join(command).replace("$$", "$").split())


ALL = [(name, index) for name in OVERLAYS for index in range(len(overlay(name)))]
OURS_HERE = sorted(PARTS)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "index"), ALL)
def test_an_object_has_the_published_schema(name, index, version):
    assert errors(overlay(name)[index], version) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_privileged_nodes_have_the_published_schema(version):
    assert [error for each in privileged() for error in errors(each, version)] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_an_object_store_has_the_published_schema(version):
    assert [error for each in stored().values() for error in errors(each, version)] == []


def test_nodes_reach_an_object_store_in_the_cluster_besides_what_they_reach():
    own = stored()["NetworkPolicy", "tangram-object-store"]["spec"]
    nodes = stored()["NetworkPolicy", "tangram-node"]["spec"]
    assert (own["podSelector"], own["policyTypes"]) == (nodes["podSelector"], ["Egress"])
    assert nodes == of_kind("bundled", "NetworkPolicy")["tangram-node"]["spec"]
    address = stored()["ConfigMap", "tangram-settings"]["data"]["TANGRAM_OBJECT_STORE"]
    endpoint = urlsplit(parse_bucket(address).endpoint)
    (rule,) = own["egress"]
    assert rule["ports"] == [{"port": endpoint.port}]
    (peer,) = rule["to"]
    namespace = peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
    assert endpoint.hostname == f"minio.{namespace}.svc"


def test_the_parts_that_use_an_object_store_have_its_keys():
    given = {
        name
        for (_, name), each in stored().items()
        if "template" in each.get("spec", ())
        and {"secretRef": {"name": "tangram-object-store"}} in container(each).get("envFrom", ())
    }
    assert given == {"tangram-web", "tangram-projector", "tangram-node"}


def test_every_file_is_used():
    used = {
        path.name
        for file in FOLDER.rglob("kustomization.yaml")
        for document in read(file)
        for path in [
            file.parent / str(entry if isinstance(entry, str) else entry["path"])
            for part in ("resources", "components", "patches")
            for entry in document.get(part, ())
        ]
        if path.resolve().exists()
    }
    there = {path.name for path in FOLDER.rglob("*.yaml")} - {"kustomization.yaml"}
    assert there <= used


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_part_of_compose_is_there(name):
    parts = {PARTS.get(each, each) for each in workloads(name)}
    if name == "bundled":
        assert parts == OURS - {"rollout"} | {"redis", "postgres"}  # rollouts need shared files
    else:
        assert parts == OURS


@pytest.mark.parametrize("part", OURS_HERE)
def test_a_part_has_the_image_and_the_command_of_compose(part):
    found = container(workloads("external")[part])
    service = SERVICES[PARTS[part]]
    assert found["image"].rpartition("/")[2].partition(":")[0] == service["image"]
    assert "command" not in found  # the entry point of the image stays
    if part == "setup":
        assert found["args"][:-1] == service["command"][:-1]
    else:
        assert words(found.get("args", [])) == words(service.get("command", []))


@pytest.mark.parametrize("part", ["redis", "postgres"])
def test_redis_and_postgresql_are_those_of_compose(part):
    found = container(workloads("bundled")[part])
    assert found["image"] == SERVICES[part]["image"]
    composed = re.sub(r"\$\{(\w+)[^}]*\}", r"$(\1)", words(SERVICES[part].get("command", [])))
    assert words(found.get("args", [])) == composed
    assert found["readinessProbe"]["exec"]["command"] == SERVICES[part]["healthcheck"]["test"][1:]


@pytest.mark.parametrize("part", OURS_HERE)
def test_a_part_sets_only_variables_that_are_read(part):
    names = [each["name"] for each in container(workloads("external")[part]).get("env", ())]
    assert set(names) <= variables_read() | MADE_HERE
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_settings_are_read(name):
    (found,) = of_kind(name, "ConfigMap").values()
    assert set(found["data"]) <= variables_read() | FOREIGN


@pytest.mark.parametrize("part", sorted(set(PARTS) - {"setup"}))
def test_a_part_has_the_variables_of_compose(part):
    """But those that .env may give, and those that a group sets."""
    (shared,) = of_kind("external", "ConfigMap").values()
    given = {each["name"] for each in container(workloads("external")[part]).get("env", ())}
    given |= set(shared["data"])
    own = SERVICES[PARTS[part]]["environment"]
    common = set(SERVICES["scheduler"]["environment"]) - {"TANGRAM_ROLE"} | FOREIGN
    demanded = {name for name, value in own.items() if value is not None} - common
    assert demanded - given <= {"TANGRAM_NODE_POOL", "TANGRAM_NODE_RESERVED_CPUS"}


@pytest.mark.parametrize("part", OURS_HERE)
def test_a_part_gets_the_settings_and_the_secrets(part):
    sources = container(workloads("external")[part])["envFrom"]
    assert {"configMapRef": {"name": "tangram-settings"}} in sources
    assert ({"secretRef": {"name": "tangram-secrets"}} in sources) is (part != "node")


def test_a_node_worker_gets_no_secret_that_it_does_not_need():
    assert {
        each["name"]
        for each in container(workloads("external")["node"])["env"]
        if "secretKeyRef" in each.get("valueFrom", ())
    } == {"TANGRAM_REDIS_URL", "TANGRAM_SECRET_KEY"}


def test_the_door_of_a_node_is_at_the_port_that_its_policy_opens():
    (given,) = of_kind("bundled", "ConfigMap").values()
    port = given["data"]["TANGRAM_NODE_DOOR"].rpartition(":")[2]
    (rule,) = of_kind("bundled", "NetworkPolicy")["tangram-node"]["spec"]["ingress"]
    assert rule["ports"] == [{"port": int(port)}]
    (address,) = [each["value"] for each in container(workloads("bundled")["node"])["env"] if each["name"] == "TANGRAM_NODE_DOOR_ADDRESS"]  # fmt: skip
    assert address == f"$(POD_IP):{port}"


@pytest.mark.parametrize("name", OVERLAYS)
def test_no_secret_is_in_a_file(name):
    assert of_kind(name, "Secret") == {}


@pytest.mark.parametrize("part", [*OURS_HERE, "redis", "postgres"])
def test_no_pod_runs_as_root_or_with_capabilities(part):
    found = {**workloads("bundled"), **workloads("external")}[part]
    assert pod(found)["securityContext"]["runAsNonRoot"] is True
    assert pod(found)["securityContext"]["runAsUser"] > 0
    assert container(found)["securityContext"]["allowPrivilegeEscalation"] is False
    assert container(found)["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_node_worker_has_what_its_sandbox_needs_in_a_user_namespace():
    """As security_opt of compose: no seccomp, no AppArmor, no masked paths; the last is refused without a user namespace."""
    opened = set(SERVICES["node"]["security_opt"]) - {"no-new-privileges=true"}
    found = workloads("external")["node"]
    assert opened == {"seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"}
    assert pod(found)["hostUsers"] is False
    assert pod(found)["securityContext"]["seccompProfile"] == {"type": "Unconfined"}
    assert pod(found)["securityContext"]["appArmorProfile"] == {"type": "Unconfined"}
    assert container(found)["securityContext"]["procMount"] == "Unmasked"


def test_a_privileged_node_worker_is_root_of_its_machine():
    (found,) = [each for each in privileged() if each["kind"] == "StatefulSet"]
    assert (pod(found)["hostUsers"], pod(found)["securityContext"]["runAsUser"]) == (True, 0)
    assert container(found)["securityContext"] == {"privileged": True, "allowPrivilegeEscalation": True}  # fmt: skip


@pytest.mark.parametrize("name", OVERLAYS)
def test_only_the_projector_may_ask_kubernetes(name):
    asking = {
        part: pod(each)["serviceAccountName"]
        for part, each in workloads(name).items()
        if pod(each)["automountServiceAccountToken"]
    }
    assert asking == {"projector": "tangram-launcher"}


def test_the_roles_permit_what_the_launcher_does_and_nothing_else():
    (role,), (machines,) = of_kind("bundled", "Role").values(), of_kind("bundled", "ClusterRole").values()  # fmt: skip

    def permitted(found):
        return {
            (verb, group, resource)
            for rule in found["rules"]
            for verb in rule["verbs"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }

    assert permitted(role) == set(PERMISSIONS)
    assert permitted(machines) == set(CLUSTER_PERMISSIONS)


@pytest.mark.parametrize("declared", ["external", "privileged"])
def test_the_launcher_can_copy_the_declared_nodes(declared):
    objects = overlay("external") if declared == "external" else privileged()
    (template,) = [each for each in objects if each["metadata"]["name"] == "tangram-node" and each["kind"] == "StatefulSet"]  # fmt: skip
    order = LaunchOrder("i", "g", "g-1", NodeGroupSpec("kubernetes", cpus=2), ["a"], {"TANGRAM_NODE": "g-1"})  # fmt: skip
    made = stateful_set(order, template, "variables", "nvidia.com/gpu", "python")
    assert [error for version in VERSIONS for error in errors(made, version)] == []
    assert container(made)["name"] == CONTAINER
    own = made["spec"]["selector"]["matchLabels"]
    assert own[INSTANCE] != template["spec"]["selector"]["matchLabels"][INSTANCE]
    assert "TANGRAM_NODE" not in {each["name"] for each in container(made)["env"]}
    assert (
        "replicas" not in template["spec"]
    )  # kept as scaled, when the manifests are applied again


def test_a_node_of_a_group_has_its_name_its_cores_and_the_door_of_the_policy(monkeypatch, settings):
    """What the keeper gives to the launcher, with the settings of the manifests."""
    (given,) = of_kind("bundled", "ConfigMap").values()
    for name, value in given["data"].items():
        monkeypatch.setenv(name, value)
    settings.TANGRAM_REDIS_URL = "redis://redis:6379/0"
    spec = NodeGroupSpec("kubernetes", count=1, cpus=2)
    command, variables = worker_command("g-1", spec)
    order = LaunchOrder("i", "g", "g-1", spec, command, variables)
    made = container(
        stateful_set(order, workloads("bundled")["node"], "variables", "gpu", "python")
    )
    assert made["args"][:3] == ["python", "-m", "celery"]
    assert (variables["TANGRAM_NODE"], variables["TANGRAM_NODE_CPUS"]) == ("g-1", "2")
    assert variables["TANGRAM_NODE_DOOR"] == given["data"]["TANGRAM_NODE_DOOR"]
    assert "TANGRAM_NODE_DOOR_ADDRESS" in {each["name"] for each in made["env"]}


@pytest.mark.parametrize("name", OVERLAYS)
def test_what_selects_pods_finds_some(name):
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in workloads(name).values()]
    selectors = [
        *(each["spec"]["selector"] for each in of_kind(name, "Service").values()),
        *(each["spec"]["selector"]["matchLabels"] for each in of_kind(name, "PodDisruptionBudget").values()),
        *(each["spec"]["selector"]["matchLabels"] for each in workloads(name).values() if each["kind"] != "Job"),
        *(each["spec"]["podSelector"].get("matchLabels", {}) for each in of_kind(name, "NetworkPolicy").values()),
    ]  # fmt: skip
    assert [each for each in selectors if not any(each.items() <= own.items() for own in labels)] == []  # fmt: skip


@pytest.mark.parametrize("part", [*sorted(set(PARTS) - {"setup"}), "redis", "postgres"])
def test_a_lasting_part_has_probes_requests_and_a_policy(part):
    name = "external" if part in PARTS else "bundled"
    found = container(workloads(name)[part])
    assert "readinessProbe" in found
    assert {"cpu", "memory"} <= set(found["resources"]["requests"])
    ports = {each["containerPort"] for each in found.get("ports", ())}
    let_in = {
        port["port"]
        for each in of_kind(name, "NetworkPolicy").values()
        if {"app.kubernetes.io/component": part}.items()
        <= each["spec"]["podSelector"].get("matchLabels", {}).items()
        for rule in each["spec"].get("ingress", ())
        for port in rule["ports"]
    }
    assert let_in == ports


def test_the_number_of_web_processes_is_left_to_the_autoscaler():
    (scaler,) = of_kind("external", "HorizontalPodAutoscaler").values()
    web = workloads("external")["web"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == web["metadata"]["name"]
    assert scaler["spec"]["minReplicas"] >= 2
    assert "replicas" not in web["spec"]


def test_a_standby_is_beside_the_leader_and_one_of_them_always_runs():
    assert workloads("external")["loop"]["spec"]["replicas"] == 2
    budget = of_kind("external", "PodDisruptionBudget")["tangram-loop"]
    assert budget["spec"]["maxUnavailable"] == 1


def test_a_machine_with_nodes_is_drained_by_tangram_first():
    budget = of_kind("external", "PodDisruptionBudget")["tangram-node"]
    assert budget["spec"]["maxUnavailable"] == 0


def test_external_redis_is_reached_by_nodes_alone_besides_the_internet():
    base = of_kind("bundled", "NetworkPolicy")["tangram-node"]["spec"]
    own = of_kind("external", "NetworkPolicy")["tangram-node"]["spec"]
    assert own["ingress"] == base["ingress"]
    assert [own["egress"][0], own["egress"][2]] == [base["egress"][0], base["egress"][2]]


@pytest.mark.parametrize("part", ["web", "projector", "rollout", "node"])
def test_parts_that_compose_gives_the_folder_of_bodies_share_files(part):
    (given,) = of_kind("external", "ConfigMap").values()
    mounted = {each["mountPath"] for each in container(workloads("external")[part])["volumeMounts"]}
    assert given["data"]["TANGRAM_BODIES_DIRECTORY"] in mounted
    assert any(each.startswith("bodies:") for each in SERVICES[PARTS[part]]["volumes"])


def test_folders_that_are_written_are_volumes():
    for part, each in workloads("external").items():
        mounted = {mount["mountPath"] for mount in container(each)["volumeMounts"]}
        assert {"/var/lib/tangram", "/tmp"} <= mounted, part
