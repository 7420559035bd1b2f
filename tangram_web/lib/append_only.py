"""Append-only models: neither our code nor the admin site changes or deletes their rows."""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models

from domain.errors import InvariantViolation


class WrittenOnce(models.QuerySet[Any]):
    """A query set that refuses bulk updates and deletes."""

    def update(self, **kwargs: Any) -> NoReturn:
        """Refuse."""
        raise InvariantViolation(f"{self.model.__name__} rows are written once")

    def delete(self) -> NoReturn:
        """Refuse."""
        raise InvariantViolation(f"{self.model.__name__} rows are never deleted")


class AppendOnly(models.Model):
    """An append-only row."""

    objects = WrittenOnce.as_manager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Insert; refuse to change."""
        if not self._state.adding:
            raise InvariantViolation(f"{type(self).__name__} rows are written once")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse."""
        raise InvariantViolation(f"{type(self).__name__} rows are never deleted")
