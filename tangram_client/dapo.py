"""Efficient DAPO: batches of prompts whose rewards differ, on `client.rollouts` alone.

    from tangram_client import Client
    from tangram_client.dapo import Dapo

    with Client() as client:
        dapo = Dapo(client, "grpo", "swe", instances, prompts=32, samples=8, llm="policy", state=checkpoint.get("dapo"))
        for batch in dapo:                       # 32 groups, each with 8 rewards that are not all the same
            for group in batch:
                train([(info.reward, info.segments) for info in group.rewarded])
            dapo.update_weights(addresses)       # of the servers with the new weights
            checkpoint.save(dapo=dapo.state())
            dapo.acknowledge(batch)

A prompt whose rewards are all the same has no gradient. Plain DAPO submits a batch, waits for all of it, and repeats that until enough
prompts have one; its workers are idle while the longest rollouts of each batch end. Here

1. as many rollouts are live at any time as `Dapo`'s ``at_once`` says: another prompt is submitted when one ends;
2. once a batch is complete nothing more is submitted, and what is unfinished is parked: it keeps its environment and its turns, and
   continues in the next iteration, with the weights of then (`max_version_span` of a rollout bounds how many versions it mixes).
   ``carry="terminate"`` cancels it instead;
3. a rollout that ended in an error, at a limit, cancelled or without a reward never trains. Its group is dropped, or the rollout is
   submitted again, or the group trains with fewer samples (``errors``);
4. what the run has come to is a small dict (`state`). A process that continues from it finds what was submitted after it was stored, by
   the names of the groups and the log of completions: groups of a batch that was not acknowledged are returned again. With
   ``state={"run": NAME}`` it begins with the whole log.

Groups that end first are returned first: the first batch has short rollouts, later ones those that were carried.
Calls are repeated while the server is away, for up to ten minutes (``retry``); after a longer outage `batch` may be called again.
The metadata of each rollout has ``dapo``: run, position, iteration, and the counts at its submission.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from tangram_client._async_dapo import AsyncDapo
from tangram_client._dapo_groups import DapoCounts, PromptGroup, differ
from tangram_client._sync_dapo import Dapo

__all__ = ["AsyncDapo", "Dapo", "DapoCounts", "PromptGroup", "assigned_servers", "differ"]


def assigned_servers(
    llm_servers: Sequence[str], rollout_servers: Sequence[str]
) -> dict[str, list[str]]:
    """Return the servers of a language model that each rollout server gets, by its address.

    A server goes to a rollout server at the same host address, so that tokens do not leave the machine; of several there, to the
    one with the fewest. The remaining ones are distributed in turn, beginning with those that have the fewest. Addresses are URLs or
    ``host:port``; register them with `client.backends.replace` of each. Raises ValueError without a rollout server.
    """
    if not rollout_servers:
        raise ValueError("rollout_servers: give at least one")
    found: dict[str, list[str]] = {server: [] for server in rollout_servers}
    hosts = {server: _host_of(server) for server in found}
    remaining = []
    for address in dict.fromkeys(llm_servers):
        near = [server for server in found if hosts[server] == _host_of(address)]
        if near:
            found[min(near, key=lambda server: len(found[server]))].append(address)
        else:
            remaining.append(address)
    for address in remaining:
        found[min(found, key=lambda server: len(found[server]))].append(address)
    return found


def _host_of(address: str) -> str:
    """Return the host of a URL or of ``host:port``, in one form. Raises ValueError."""
    host = urlsplit(address if "://" in address else f"//{address}").hostname
    if not host:
        raise ValueError(f"{address!r} has no host: give http://HOST:PORT or HOST:PORT")
    return "127.0.0.1" if host in ("localhost", "::1") else host
