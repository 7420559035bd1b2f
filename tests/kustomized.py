"""What `kubectl kustomize` makes of a folder, as far as deploy/kubernetes uses it: files, bases, components, patches, namespace, images.

Tests of the manifests need no program for it; `tests/integration/deploy` compares the two where there is a kubectl.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final

import yaml

Object = dict[str, Any]
#: Kinds without a namespace, of those that we have.
_WHOLE_CLUSTER: Final = frozenset({"ClusterRole", "ClusterRoleBinding", "Namespace"})
#: Lists that a strategic merge joins by a key; others are replaced.
_JOINED: Final = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}  # fmt: skip
_KNOWN: Final = frozenset({"apiVersion", "kind", "namespace", "resources", "components", "images", "patches"})  # fmt: skip
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(path: Path) -> list[Any]:
    """Return the documents of a file."""
    return list(yaml.load_all(path.read_text(), Loader=_LOADER))


def built(folder: Path, objects: list[Object] | None = None) -> list[Object]:
    """Return the objects of a folder, added to those of the folder that uses it as a component."""
    (file,) = read(folder / "kustomization.yaml")
    assert set(file) <= _KNOWN, f"{folder}: {set(file) - _KNOWN}"
    found = [] if objects is None else objects
    for name in file.get("resources", ()):
        path = folder / name
        found += built(path) if path.is_dir() else read(path)
    for name in file.get("components", ()):
        found = built(folder / name, found)
    for patch in file.get("patches", ()):
        for document in read(folder / patch["path"]):
            _patch(found, document, patch.get("target"))
    for image in file.get("images", ()):
        for container in _containers(found):
            if container["image"] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    for each in found:
        if "namespace" in file and each["kind"] not in _WHOLE_CLUSTER:
            each["metadata"]["namespace"] = file["namespace"]
    return found


def _containers(objects: list[Object]) -> list[Object]:
    pods = [
        each["spec"]["template"]["spec"] for each in objects if "template" in each.get("spec", ())
    ]
    return [container for pod in pods for container in pod["containers"]]


def _patch(objects: list[Object], patch: Any, target: Object | None) -> None:
    """Apply a patch: a part of an object, or a list of operations on the object that ``target`` names."""
    kind, name = (target["kind"], target["name"]) if target else (patch["kind"], patch["metadata"]["name"])  # fmt: skip
    (index,) = [
        i for i, each in enumerate(objects) if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]  # fmt: skip
    if not isinstance(patch, list):
        objects[index] = _merged(objects[index], patch)
        return
    for operation in patch:
        *way, last = operation["path"].strip("/").split("/")
        assert (operation["op"], last) == ("add", "-"), operation
        place: Any = objects[index]
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        place.append(copy.deepcopy(operation["value"]))


def _merged(base: Any, patch: Any) -> Any:
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(base.get(key), dict):
            merged[key] = _merged(base[key], value)
        elif key in _JOINED and key in base:
            merged[key] = _joined(base[key], value, _JOINED[key])
        else:
            merged[key] = value
    return merged


def _joined(base: list[Object], patch: list[Object], key: str) -> list[Object]:
    changes = {each[key]: each for each in patch}
    joined = [_merged(each, changes.pop(each[key], {})) for each in base]
    return [*joined, *changes.values()]
