"""What each member of a spec means, in a line, with an example where it is edited as YAML.

Every member has one, and every example is taken by the schema: a test sees to both.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Help(NamedTuple):
    """One member's line."""

    text: str
    #: A value as it may be typed into the field.
    example: str = ""


_POOL: Final = {
    "policy": Help("Who gets how many units: malleable, balanced, minimum, paper or fixed(k)."),
    "paused": Help("Nothing more is granted; what runs goes on."),
    "light_by_default": Help(
        "Commands that name no cores run on shared ones where their family's history allows it."
    ),
    "node_grace_seconds": Help("Actions of a node that is silent for so long end as unknown."),
    "node_dead_seconds": Help("Trajectories of a node that is silent for so long end, too."),
    "shares": Help(
        "Parts of projects in cpu and gpu, over all nodes together.",
        "gpu: {team-a: {nominal_units: 4, borrow_units: 2}}",
    ),
}
_PROJECT: Final = {
    "default_pool": Help("Where its actions go that name no pool."),
}
_NODE: Final = {
    "drained": Help("Nothing more is granted on it; what runs goes on."),
    "reason": Help("Why, for whoever looks at it."),
}
_RESOURCE: Final = {
    "limit_units": Help("How many may be held at once; 0 stops all grants."),
    "quotas": Help(
        "How many may begin in a sliding window, or on a calendar day of a time zone.",
        "- {units: 600, window_seconds: 60}",
    ),
    "learn_from_units": Help(
        "Learn how much may be open at once, between this and the limit. Empty: the limit holds."
    ),
    "breaker": Help(
        "After so many failures in a row nothing is sent for a while.",
        "{failures: 5, cooldown_seconds: 5, longest_seconds: 60}",
    ),
    "retries": Help(
        "Attempts at one call, and the budget that all callers share: a burst, and so many more for"
        " each good answer.",
        "{attempts: 5, ratio: 0.2, burst: 20}",
    ),
    "api": Help(
        "The API behind it; the secret is the name of one that the nodes know.",
        "{base_url: 'https://api.example.com/v1', secret_header: Authorization, secret: SEARCH_KEY}",
    ),
    "shares": Help(
        "Parts of projects; who is not named has a nominal share of 0.",
        "{team-a: {nominal_units: 6}, team-b: {nominal_units: 2}}",
    ),
}
_SERVICE: Final = {
    "engine": Help(
        "What serves it: process starts and stops any HTTP server, the others keep weights in host"
        " memory."
    ),
    "degrees": Help(
        "How many GPUs it may have, and what it needs of the memory of each.",
        "- {gpus: 1, memory_bytes: 16000000000}",
    ),
    "source": Help("Its model: a name, a path on the nodes, or module:function."),
    "command": Help(
        "Starts its server. {port}, {gpus}, {source}, {memory_bytes}, {at_once} and {python} are"
        " filled in.",
        "[vllm, serve, '{source}', --port, '{port}']",
    ),
    "env": Help("Variables of its server.", "{TOKENIZERS_PARALLELISM: 'false'}"),
    "warm_up": Help(
        "Sent after each restore; it is let in once the answer is 2xx. The invariant part of the"
        " answer must be the same every time.",
        "{method: GET, path: /health}",
    ),
    "paths": Help("A call's path is one of these, or goes on below one.", "[/v1]"),
    "restore_timeout_seconds": Help("Longest time until it answers after a start or a restore."),
    "max_concurrency": Help(
        "Requests at once on each of its chunks; engines that batch take more."
    ),
    "duration_seconds": Help("Expected duration of a call on one GPU. Empty: it is learned."),
    "elasticity": Help(
        "How well it uses more GPUs: 1 is perfect. Durations go by it.", "{'1': 1.0, '2': 0.9}"
    ),
    "eager": Help("Prepared for every feasible chunk when a node joins, not at the first call."),
    "host_memory_bytes": Help(
        "Host memory of one instance, awake or asleep. Empty: as much as its GPU memory, nothing"
        " with engine process."
    ),
    "python": Help("Interpreter of engine torch, which has torch. Empty: the node worker's own."),
    "quarantined": Help("Calls wait, and its chunks are the first to be given to others."),
}
#: Kind → member → its line.
HELPS: Final = {
    "Pool": _POOL, "Project": _PROJECT, "Resource": _RESOURCE, "GpuService": _SERVICE, "Node": _NODE,
}  # fmt: skip
NAME: Final = "What others call it by; an object of this name is changed, else one is made."
