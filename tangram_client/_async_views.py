"""Saved views: filters of the explorer under a name."""

from __future__ import annotations

from collections.abc import Sequence

from tangram_client import _view_calls
from tangram_client._async_files import AsyncSender
from tangram_client.models import Json


class AsyncViewCalls:
    """Saved views; one is named by its id, or by its name where that is unique."""

    def __init__(self, sender: AsyncSender, project: str | None) -> None:
        self._sender = sender
        self._project = project

    async def list(self, list_name: str | None = None) -> tuple[Json, ...]:
        """Return the views of projects and those of the token's account; ``list_name``: of this list alone."""
        return await self._sender.send(_view_calls.views_list(list_name))

    async def save(
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
        return await self._sender.send(_view_calls.save_view(given))

    async def rename(self, view: str, name: str) -> Json:
        """Give a view another name. Raises NotFound, ConflictError for a name that another view has."""
        return await self._sender.send(_view_calls.change_view(view, {"name": name}))

    async def share(self, view: str, project: str | None) -> Json:
        """Show a view to the members of a project; None: to its owner alone. Raises NotFound."""
        return await self._sender.send(_view_calls.change_view(view, {"project": project}))

    async def delete(self, view: str) -> None:
        """Delete a view. Raises NotFound."""
        await self._sender.send(_view_calls.delete_view(view))
