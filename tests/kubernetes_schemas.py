"""The published schemas of Kubernetes, strict, of the kinds that Tangram uses: for checks without a cluster and without a network.

``python -m tests.kubernetes_schemas`` writes them again, from an installed ``kubernetes-validate``: that package has 108 MB of schemas.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from importlib import resources
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft202012Validator

#: The oldest one whose defaults let a pod have user namespaces and an unmasked /proc, and the newest one.
VERSIONS: Final = ("1.33", "1.37")
KINDS: Final = (
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("autoscaling/v2", "HorizontalPodAutoscaler"),
    ("batch/v1", "Job"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("policy/v1", "PodDisruptionBudget"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("v1", "ConfigMap"),
    ("v1", "Namespace"),
    ("v1", "Node"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "Pod"),
    ("v1", "Secret"),
    ("v1", "Service"),
    ("v1", "ServiceAccount"),
)
_FOLDER: Final = Path(__file__).parent / "data" / "kubernetes" / "vendor"
_REFERENCE: Final = "/api/_definitions.json#/$defs/"


def errors(found: dict[str, Any], version: str) -> list[str]:
    """Return what the schema of a version refuses of an object, unknown members included."""
    known = _schemas(version)
    key = f"{found.get('apiVersion')}/{found.get('kind')}"
    if key not in known["kinds"]:
        return [f"{key} is none of the kinds of tests/kubernetes_schemas.py"]
    schema = {**known["kinds"][key], "$defs": known["$defs"]}
    return [
        f"{'.'.join(map(str, each.absolute_path))}: {each.message}"
        for each in Draft202012Validator(schema).iter_errors(found)
    ]


@functools.cache
def _schemas(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_FOLDER / f"v{version}.json").read_text())
    return found


def _closure(source: Path) -> dict[str, Any]:
    """Return the schemas of `KINDS` and all that they refer to, without descriptions."""
    definitions = json.loads((source / "_definitions.json").read_text())["$defs"]
    kinds: dict[str, Any] = {}
    for version, kind in KINDS:
        short = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", version)
        text = (source / f"{kind.lower()}-{short}.json").read_text()
        kinds[f"{version}/{kind}"] = _bare(json.loads(text))
    used: dict[str, Any] = {}
    todo = _named(kinds)
    while todo:
        name = todo.pop()
        if name not in used:
            used[name] = _bare(definitions[name])
            todo |= _named(used[name])
    return {"kinds": kinds, "$defs": used}


def _named(schema: Any) -> set[str]:
    return set(re.findall(r'"#/\$defs/([^"]+)"', json.dumps(schema)))


def _bare(schema: Any, *, is_names: bool = False) -> Any:
    """Return a schema without descriptions, with references within the file."""
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema.replace(_REFERENCE, "#/$defs/") if isinstance(schema, str) else schema
    return {
        key: _bare(value, is_names=key == "properties" and not is_names)
        for key, value in schema.items()
        if is_names or not (key in ("description", "$schema", "$id") or key.startswith("x-"))
    }


def main() -> None:
    """Write the schemas of `VERSIONS`."""
    source = Path(str(resources.files("kubernetes_validate"))) / "kubernetes-json-schema"
    for version in VERSIONS:
        text = json.dumps(_closure(source / f"v{version}.0-local-strict"), sort_keys=True, indent=1)
        (_FOLDER / f"v{version}.json").write_text(text + "\n")
        sys.stdout.write(f"v{version}: {len(text):,} bytes\n")


if __name__ == "__main__":
    main()
