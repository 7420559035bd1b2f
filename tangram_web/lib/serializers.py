"""Serializers that refuse what they do not know."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses unknown members of the body, naming them: a misspelt field must not be ignored."""

    def to_internal_value(self, data: Any) -> Any:
        """Check the names before the values."""
        if isinstance(data, dict):
            unknown = sorted(set(data) - set(self.fields))
            if unknown:
                known = ", ".join(sorted(self.fields))
                raise serializers.ValidationError(
                    {_escaped(name): [f"unknown field; known are {known}"] for name in unknown}
                )
        return super().to_internal_value(data)


def _escaped(name: str) -> str:
    """Return ``name`` as part of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")
