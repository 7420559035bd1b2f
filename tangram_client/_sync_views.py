"""Saved views, blocking. Generated from `_async_views`: change that one.

``python -m tests.architecture.sync_client`` writes this module.
"""

from __future__ import annotations

from collections.abc import Sequence

from tangram_client import _view_calls
from tangram_client._sync_files import Sender
from tangram_client.models import Json


class ViewCalls:
    """Saved views; one is named by its id, or by its name where that is unique."""

    def __init__(self, sender: Sender, project: str | None) -> None:
        self._sender = sender
        self._project = project

    def list(self, list_name: str | None = None) -> tuple[Json, ...]:
        """Return the views of projects and those of the token's account; ``list_name``: of this list alone."""
        return self._sender.send(_view_calls.views_list(list_name))

    def save(
        self,
        name: str,
        q: str = "",
        *,
        list_name: str = "actions",
        sort: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> Json:
        """Save a filter and an order as a view of the client's project, without one of the token's account.

        A view of the same name and list is replaced. Raises InvalidRequestError, NotFound.
        """
        given = {
            "name": name, "q": q, "list": list_name, "sort": sort, "project": self._project,
            "columns": None if columns is None else [*columns],
        }  # fmt: skip
        return self._sender.send(_view_calls.save_view(given))

    def rename(self, view: str, name: str) -> Json:
        """Give a view another name. Raises NotFound, ConflictError for a name that another view has."""
        return self._sender.send(_view_calls.change_view(view, {"name": name}))

    def share(self, view: str, project: str | None) -> Json:
        """Show a view to the members of a project; None: to its owner alone. Raises NotFound."""
        return self._sender.send(_view_calls.change_view(view, {"project": project}))

    def delete(self, view: str) -> None:
        """Delete a view. Raises NotFound."""
        self._sender.send(_view_calls.delete_view(view))
