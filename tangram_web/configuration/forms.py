"""Forms made from the JSON Schema of a document: one field for each member of a spec.

Members that are plain values are fields of their own; lists and objects are edited as YAML. The
schema is that of `tangram apply`, so what it learns is here as well.
"""

from __future__ import annotations

from typing import Any, Final

import yaml
from django import forms

from domain.errors import InvalidRequest
from tangram_web.configuration.helps import HELPS, NAME, Help
from tangram_web.pools.manifests import json_schema
from tangram_web.pools.yaml_text import documents

_PLAIN: Final[dict[str, type[forms.Field]]] = {
    "string": forms.CharField,
    "integer": forms.IntegerField,
    "number": forms.FloatField,
    "boolean": forms.BooleanField,
}
_NOTHING: Final[tuple[Any, ...]] = (None, {}, [], ())


class SpecForm(forms.Form):
    """The members of one kind's spec."""

    def __init__(self, kind: str, spec: dict[str, Any] | None, data: Any = None) -> None:
        super().__init__(data)
        self.kind = kind
        members, required = members_of(kind)
        self._defaults = {name: _default(each) for name, each in members.items()}
        self.fields["name"] = forms.CharField(max_length=128, label="Name", help_text=NAME)
        for name, schema in members.items():
            self.fields[name] = _field(name, schema, required=name in required)
            _explain(self.fields[name], HELPS[kind][name])
            given = (spec or {}).get(name, self._defaults[name])
            if (spec is not None and name in spec) or given not in _NOTHING:
                nested = isinstance(self.fields[name].widget, forms.Textarea)
                self.initial[name] = _as_yaml(given) if nested else given

    def clean(self) -> dict[str, Any]:
        """Read the members that are YAML."""
        cleaned: dict[str, Any] = super().clean() or {}
        for name, field in self.fields.items():
            if isinstance(field.widget, forms.Textarea) and cleaned.get(name):
                try:
                    cleaned[name] = _read(cleaned[name])
                except InvalidRequest as error:
                    self.add_error(name, str(error))
        return cleaned

    def document(self) -> dict[str, Any]:
        """Return the document that the fields say; what is empty is left out."""
        spec = {
            name: self.cleaned_data[name]
            for name in self.fields
            if name != "name" and self._says(name, self.cleaned_data.get(name))
        }
        meta = {"name": self.cleaned_data["name"]}
        return {"apiVersion": "tangram/v1", "kind": self.kind, "metadata": meta, "spec": spec}

    def _says(self, name: str, value: Any) -> bool:
        """Say whether a value is more than the default."""
        return value not in (None, "") and value != self._defaults[name]


def members_of(kind: str) -> tuple[dict[str, Any], list[str]]:
    """Return the schema of each member of a kind's spec, and which must be there."""
    schema = json_schema()
    definitions = schema["$defs"]
    documents = [definitions[each["$ref"].rpartition("/")[2]] for each in schema["anyOf"]]
    mine = next(d for d in documents if d["properties"]["kind"]["enum"] == [kind])
    reference = _reference(mine["properties"]["spec"])
    spec = definitions[reference.rpartition("/")[2]]
    resolved = {name: _resolved(member, definitions) for name, member in spec["properties"].items()}
    return resolved, spec.get("required", [])


def _default(schema: dict[str, Any]) -> Any:
    """Return a member's default as YAML reads it: the schema has tuples as they are declared."""
    default = schema.get("default")
    return list(default) if isinstance(default, tuple) else default


def _reference(member: dict[str, Any]) -> str:
    found = member.get("$ref") or next(e["$ref"] for e in member["anyOf"] if "$ref" in e)
    return str(found)


def _resolved(member: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a member's own schema where it is an enum behind a reference."""
    if "$ref" in member:
        target = definitions[member["$ref"].rpartition("/")[2]]
        return {**target, **member} if "enum" in target else member
    return member


def _field(name: str, schema: dict[str, Any], *, required: bool) -> forms.Field:
    label = name.replace("_", " ").capitalize()
    if "enum" in schema:
        choices = [(value, value) for value in schema["enum"]]
        return forms.ChoiceField(label=label, choices=choices, required=required)
    kinds = {schema.get("type"), *(each.get("type") for each in schema.get("anyOf", ()))}
    plain = next((_PLAIN[kind] for kind in kinds if kind in _PLAIN), None)
    if plain is None or kinds & {"array", "object"}:
        area = forms.Textarea(attrs={"rows": 4, "spellcheck": "false", "class": "mono"})
        return forms.CharField(label=f"{label} (YAML)", required=required, widget=area)
    return plain(label=label, required=required and plain is not forms.BooleanField)


def _explain(field: forms.Field, given: Help) -> None:
    example = f" For example: {given.example}" if given.example else ""
    field.help_text = given.text + example


def _read(text: str) -> Any:
    """Return what a member's text says, as strictly read as a whole document is."""
    found = documents(text)
    if len(found) > 1:
        raise InvalidRequest("this is more than one document")
    return found[0].value if found else None


def _as_yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
