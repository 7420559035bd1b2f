"""One OpenAPI document for what Django serves and what the gateway serves."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client
from drf_spectacular.validation import validate_schema
from jsonschema import Draft202012Validator

from contract.routes import ROUTES
from facades import registry
from tests.architecture.tree import PACKAGES


@pytest.fixture
def document(db: None) -> dict[str, Any]:
    """The document as it is served, without a token."""
    answer = Client().get("/api/v1/openapi.json")
    assert answer.status_code == 200
    described: dict[str, Any] = json.loads(answer.content)
    return described


def operations(document):
    """Yield (path, method, operation)."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def reference(name):
    """Return the reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def references(value):
    """Yield every reference in ``value``."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_document_is_valid(document):
    assert document["openapi"].startswith("3.1")
    validate_schema(document)


def test_schemas_are_valid_json_schema(document):
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_reference_leads_somewhere(document):
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}

    assert set(references(document)) <= known


FACADE_ROUTES = [
    route for entry in registry.entries() if entry.documented for route in entry.facade.routes
]


def test_every_route_of_the_gateway_and_of_its_facades_is_listed(document):
    for route in (*ROUTES, *FACADE_ROUTES):
        operation = document["paths"][route.path][route.method.lower()]

        assert operation["operationId"] == route.operation
        assert {str(status) for status in route.responses} <= set(operation["responses"])
        shows = route.scope or route.own_token
        assert operation["security"] == ([{"bearer": []}] if shows else [])
        assert ("requestBody" in operation) is (route.body is not None)


def test_status_and_accepted_bodies_are_typed(document):
    schemas = document["components"]["schemas"]
    status = document["paths"]["/api/v1/status"]["get"]["responses"]["200"]
    assert status["content"]["application/json"]["schema"] == reference("SystemStatus")
    assert schemas["SystemStatus"]["properties"]["nodes"]["items"] == reference("NodeStatus")

    for path, method, operation in operations(document):
        accepted = operation["responses"].get("202")
        if accepted and path.startswith("/api/v1/"):
            (content,) = accepted["content"].values()
            assert "$ref" in content["schema"], (path, method)


def test_a_generated_client_is_no_package_of_ours(document):
    """Generators name the package ``<title>_client`` and import it beside `tangram_client`."""
    package = "_".join([*document["info"]["title"].lower().split(), "client"])

    assert package.isidentifier()
    assert package not in PACKAGES


def test_a_generator_can_name_every_operation_and_every_body(document):
    """Each operation becomes a function, each JSON body a model or a dictionary."""
    for path, method, operation in operations(document):
        assert operation["operationId"].isidentifier(), (path, method)
        bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
        contents = [content for body in bodies for content in body.get("content", {}).items()]
        for media_type, content in contents:
            if "json" in media_type:
                assert content["schema"], (path, method, media_type)
        placed = {
            given["name"] for given in operation.get("parameters", ()) if given["in"] == "path"
        }
        assert placed == set(re.findall(r"{(\w+)}", path)), (path, method)


@pytest.mark.parametrize(
    ("path", "method", "statuses"),
    [
        ("actions", "post", {"404", "409", "413", "422", "429", "503"}),
        ("actions/{id}", "get", {"404", "429", "503"}),
        ("completions", "get", {"410"}),
        ("config/apply", "post", {"412"}),
        ("config/revisions/{number}/rollback", "post", {"412"}),
        ("trajectories/{id}/files/{path}", "put", {"404", "409", "413", "429"}),
    ],
)
def test_refusals_that_do_happen_are_listed(document, path, method, statuses):
    assert statuses <= set(document["paths"][f"/api/v1/{path}"][method]["responses"])


def test_each_operation_has_a_name_of_its_own(document):
    names = [operation["operationId"] for _, _, operation in operations(document)]

    assert len(names) == len(set(names))


def test_each_operation_says_its_scope_and_its_problems(document):
    for path, method, operation in operations(document):
        if not path.startswith("/api/v1/"):
            continue
        scopes = {"read", "submit", "operate", "config", "admin"}
        own = {"rank"} if path.endswith("/batches/{id}/rows") else set()
        own |= {"join"} if path.endswith("/join") else set()
        assert operation["x-scope"] in scopes | own, path
        for status, answer in operation["responses"].items():
            if status >= "4":
                assert list(answer["content"]) == ["application/problem+json"], (path, method)


def test_both_sides_share_one_path(document):
    assert set(document["paths"]["/api/v1/actions"]) == {"get", "post"}
    assert set(document["paths"]["/api/v1/trajectories"]) == {"get", "post"}


def test_list_of_actions_shows_what_the_gateway_shows(document):
    answer = document["paths"]["/api/v1/actions"]["get"]["responses"]["200"]
    name = answer["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    listed = document["components"]["schemas"][name]["properties"]["results"]["items"]
    shown = document["components"]["schemas"]["ActionResponse"]

    assert listed == {"$ref": "#/components/schemas/ActionResponse"}
    assert "waiting" in shown["properties"]


def test_docs_page_needs_nothing_from_elsewhere(db):
    answer = Client().get("/api/docs/")

    assert answer.status_code == 200
    assert b"/static/drf_spectacular_sidecar/swagger-ui-dist/" in answer.content
    assert b"https://" not in answer.content
