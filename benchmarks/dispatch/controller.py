"""The rival that frameworks have built in: one controller gathers the whole batch and scatters it, here over plain TCP without overhead.

Rank 0 is the controller. It receives from all at once, into one array, without a copy; it sends to all at once. Nothing is pickled or checked.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dispatcher.transport.connections import Address


def together(calls: list[Callable[[], Any]]) -> None:
    """Call all at once; return when each has ended."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fill(connection: socket.socket, array: Any) -> None:
    """Fill an array from a connection."""
    view = memoryview(array).cast("B")
    while view:
        got = connection.recv_into(view, 0, socket.MSG_WAITALL)
        if not got:
            raise ConnectionError("the other side closed the connection")
        view = view[got:]


class Star:
    """Connections of a controller with the other ranks."""

    def __init__(
        self, rank: int, addresses: Mapping[int, Address], listener: socket.socket
    ) -> None:
        self.rank, self.ranks = rank, len(addresses)
        self.connections: dict[int, socket.socket] = {}
        if rank:
            self.connections[0] = socket.create_connection(addresses[0])
            self.connections[0].sendall(bytes([rank]))
            return
        for _ in range(self.ranks - 1):
            connection, _ = listener.accept()
            self.connections[connection.recv(1)[0]] = connection

    def gather_and_scatter(self, mine: Any) -> Any:
        """Return this rank's rows of all ranks' ``mine``: every n-th."""
        count, columns = mine.shape
        if self.rank:
            wanted = np.empty_like(mine)
            self.connections[0].sendall(memoryview(mine).cast("B"))
            fill(self.connections[0], wanted)
            return wanted
        whole = np.empty((count * self.ranks, columns), mine.dtype)
        whole[:count] = mine
        together(
            [
                lambda rank=rank, each=each: fill(each, whole[rank * count : (rank + 1) * count])  # type: ignore[misc]
                for rank, each in self.connections.items()
            ]
        )

        def scatter(rank: int) -> None:
            rows = np.ascontiguousarray(whole[rank :: self.ranks])
            self.connections[rank].sendall(rows.data.cast("B"))

        together([lambda rank=rank: scatter(rank) for rank in self.connections])  # type: ignore[misc]
        return np.ascontiguousarray(whole[0 :: self.ranks])
