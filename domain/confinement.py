"""Confinement of commands: what a pool requires of its nodes, and which networks its environments use.

A pool with ``sandbox: required`` gives actions only to nodes that run each command in a sandbox. With
``off`` a node may run commands as plain processes, which can do what the user of its worker can do.

An environment without a network is always allowed; ``host`` only where the pool says so; ``egress`` where
the pool names hosts and requires a sandbox, without which nothing would enforce it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

from domain.errors import InvalidRequest
from domain.protection import Protection

SandboxRule = Literal["required", "off"]
REQUIRED: Final = "required"
OFF: Final = "off"

#: Isolation of the container driver begins so.
CONTAINERS: Final = "docker"
#: Isolation of a node that runs commands as plain processes.
PLAIN: Final = "process"
#: Isolation of a node without root whose environments are made by Apptainer.
APPTAINER: Final = "apptainer"

NETWORK_NONE: Final = "none"
NETWORK_HOST: Final = "host"
#: All networks that an environment can name.
#: A network of its own, with a proxy that reaches the hosts of `domain.egress.EgressRules`.
NETWORK_EGRESS: Final = "egress"
NETWORKS: Final = (NETWORK_NONE, NETWORK_HOST, NETWORK_EGRESS)

#: Where a request names it.
NETWORK_POINTER: Final = "/environment/network"
_CURES: Final = {
    NETWORK_HOST: "host_network: true",
    NETWORK_EGRESS: "egress.hosts and sandbox: required",
}

#: What makes a node able to run a sandbox.
SANDBOX_CURE: Final = (
    "allow user namespaces on the machine (sysctl user.max_user_namespaces, AppArmor) or give it a"
    " Docker Engine (TANGRAM_CPU_BACKEND=docker)"
)


def check_network(network: str, pool: str, allowed: Collection[str]) -> None:
    """Raise InvalidRequest for a network that environments of ``pool`` may not use."""
    if network not in NETWORKS:
        raise InvalidRequest(f"network is {' or '.join(NETWORKS)}", pointer=NETWORK_POINTER)
    if network not in allowed:
        raise InvalidRequest(
            f"pool {pool!r} does not allow network {network!r}: use {' or '.join(allowed)}, or ask an"
            f" admin to set {_CURES[network]} for the pool",
            pointer=NETWORK_POINTER,
            code="network_not_allowed",
        )


def can_sandbox(isolation: str, protection: Protection | None) -> bool:
    """Return whether a node runs its commands in a sandbox, or runs none.

    A sandbox whose commands have uid 0 of the host is none. Containers count as sandboxes. A worker of
    an earlier version reports its ``isolation`` alone.
    """
    if isolation == PLAIN:
        return False
    return protection is None or protection.sandboxed or isolation.startswith(CONTAINERS)


def why_refused(pool: str) -> str:
    """Return why a node without a sandbox gets no actions of ``pool``, with the cure."""
    return (
        f"pool {pool} requires a sandbox, and this node has none: {SANDBOX_CURE};"
        " or set sandbox: off for the pool"
    )
