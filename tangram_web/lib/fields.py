"""A column of JSON as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from django.db import models

if TYPE_CHECKING:

    class _TextField(models.TextField[Any, Any]):
        """Declares to the type checker that the field takes and returns any value."""

        _pyi_private_set_type: Any
        _pyi_private_get_type: Any
        _pyi_lookup_exact_type: Any

else:
    _TextField = models.TextField


class JsonText(_TextField):
    """A value stored as JSON in a text column.

    Not ``JSONField``: PostgreSQL's jsonb refuses U+0000, which commands do print, and the
    projection writes these columns as text that it has encoded already.
    """

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Any:
        """Decode what the column holds."""
        return None if not value else msgspec.json.decode(value)

    def to_python(self, value: Any) -> Any:
        """Keep decoded values as they are."""
        return value

    def get_prep_value(self, value: Any) -> str | None:
        """Encode a value for the column."""
        return None if value is None else msgspec.json.encode(value).decode()

    def value_to_string(self, obj: Any) -> str:
        """Encode the value of ``obj`` for serialized data."""
        return self.get_prep_value(self.value_from_object(obj)) or ""
