"""Forms of specs, built from the JSON Schema of `tangram apply`: one field for each member.

Plain values have a field of their type; lists and objects are edited as YAML. Every member has a
help text in `HELPS`; a test checks that, and that the schema accepts every example.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import yaml
from django import forms

from domain.errors import InvalidRequest
from tangram_web.pools.manifests import json_schema
from tangram_web.pools.yaml_text import documents

_PLAIN: Final[dict[str, type[forms.Field]]] = {
    "string": forms.CharField,
    "integer": forms.IntegerField,
    "number": forms.FloatField,
    "boolean": forms.BooleanField,
}
_NOTHING: Final[tuple[Any, ...]] = (None, {}, [], ())


class Help(NamedTuple):
    """The help text of one member."""

    text: str
    #: A value as it may be typed into the field.
    example: str = ""


_POOL: Final = {
    "policy": Help(
        "Decides the units of each action: malleable, makespan, weighted, balanced, minimum, "
        "paper or fixed(k)."
    ),
    "paused": Help("No new grants; running actions continue."),
    "light_by_default": Help(
        "Commands without a CPU cost run on shared cores if their family's history allows it."
    ),
    "node_grace_seconds": Help(
        "Actions end as unknown after the node sent no heartbeat for so long."
    ),
    "node_dead_seconds": Help("Trajectories end after the node sent no heartbeat for so long."),
    "shares": Help(
        "Shares of projects in cpu and gpu, over all nodes together.",
        "gpu: {team-a: {nominal_units: 4, borrow_units: 2}}",
    ),
    "sandbox": Help(
        "required: nodes that cannot run commands in a sandbox get no actions. off: commands may run"
        " as plain processes, which can do what the node worker can."
    ),
    "host_network": Help("Environments may use the network of their node (network: host)."),
    "egress": Help(
        "Hosts that environments with network: egress reach, through a proxy of their node; connections"
        " at once, bytes in all and seconds of a connection bound each environment.",
        "{hosts: [packages.test, '*.files.example.com']}",
    ),
    "warm": Help(
        "Environments that each node keeps started in advance, by image; '' is no image. Opening a trajectory"
        " takes one.",
        "{'swe:1': 8}",
    ),
    "move_environments": Help(
        "While a node lets its trajectories finish, environments of idle ones without a process or a session move to another"
        " node of the pool."
    ),
    "rebalance_environments": Help(
        "An action that waits for its node moves with its environment to a node of the pool that has room, once it has waited as"
        " long as such a move takes. Needs move_environments; environments with a process, a session, more than 32 MiB or more than 4,000 files stay."
    ),
}
_PROJECT: Final = {
    "default_pool": Help("Pool of actions that name none."),
    "limits": Help(
        "Limits of what waits and of the rate of submissions, in place of those of the installation.",
        "{queued_actions: 50000, submissions_per_second: 200}",
    ),
}
_NODE: Final = {
    "drained": Help("No new grants on this node; running actions continue."),
    "reason": Help("Reason, shown on pages."),
    "finishing": Help(
        "Open trajectories continue there while it is drained; new ones go elsewhere."
    ),
}
_RESOURCE: Final = {
    "limit_units": Help("Units that may be held at once; 0 stops all grants."),
    "quotas": Help(
        "Units granted at most in any sliding window, or on a calendar day of a time zone.",
        "- {units: 600, window_seconds: 60}",
    ),
    "learn_from_units": Help(
        "Lowest learned limit: the limit adapts to the API between this and limit_units. Empty: fixed."
    ),
    "breaker": Help(
        "No request is sent for the cooldown after so many failures in a row.",
        "{failures: 5, cooldown_seconds: 5, longest_seconds: 60}",
    ),
    "retries": Help(
        "Attempts of one call, and the retry budget of all calls: a burst, plus a ratio of the"
        " successful answers.",
        "{attempts: 5, ratio: 0.2, burst: 20}",
    ),
    "api": Help(
        "The API behind it; secret is the name of a secret that the nodes have.",
        "{base_url: 'https://api.example.com/v1', secret_header: Authorization, secret: SEARCH_KEY}",
    ),
    "shares": Help(
        "Shares of projects; a project without one has a nominal share of 0.",
        "{team-a: {nominal_units: 6}, team-b: {nominal_units: 2}}",
    ),
}
_SERVICE: Final = {
    "engine": Help(
        "process starts and stops any HTTP server; the other engines keep weights in host memory."
    ),
    "degrees": Help(
        "GPU counts that it supports (DoP), with the memory that it needs on each GPU.",
        "- {gpus: 1, memory_bytes: 16000000000}",
    ),
    "source": Help("Its model: a name, a path on the nodes, or module:function."),
    "command": Help(
        "Command that starts its server. {port}, {gpus}, {source}, {memory_bytes}, {at_once} and"
        " {python} are replaced.",
        "[vllm, serve, '{source}', --port, '{port}']",
    ),
    "env": Help(
        "Environment variables of its server. Values are write-only: one that is set is shown as"
        " <secret …>, which keeps it.",
        "{TOKENIZERS_PARALLELISM: 'false'}",
    ),
    "warm_up": Help(
        "Request after each restore; calls are admitted after a 2xx answer. The invariant part of the"
        " answer must be equal every time.",
        "{method: GET, path: /health}",
    ),
    "paths": Help("Allowed paths of calls, with everything below them.", "[/v1]"),
    "restore_timeout_seconds": Help("Longest time from a start or restore to its first answer."),
    "idle_timeout_seconds": Help(
        "Longest pause within an answer; a call whose answer stalls longer ends as timeout. 0: no limit."
    ),
    "max_concurrency": Help(
        "Concurrent requests on each of its chunks; engines that batch allow more."
    ),
    "duration_seconds": Help("Expected duration of a call on one GPU. Empty: learned from calls."),
    "elasticity": Help(
        "Efficiency E(m) for m GPUs, 1 is perfect; it scales expected durations.",
        "{'1': 1.0, '2': 0.9}",
    ),
    "eager": Help(
        "Loaded on every feasible chunk when a node joins, instead of at the first call."
    ),
    "host_memory_bytes": Help(
        "Host memory of one instance, loaded or asleep. Empty: as much as its GPU memory; with engine"
        " process none."
    ),
    "python": Help(
        "Python interpreter with torch, for engine torch. Empty: that of the node worker."
    ),
    "quarantined": Help("Calls wait, and its chunks are reused first."),
}
_FLEET: Final = {
    "engine": Help(
        "What serves the model: vllm, sglang, torch, or openai for any other server of that protocol."
    ),
    "source": Help("Its model: a name, or a path on the nodes. Empty: the name of the fleet."),
    "workers": Help(
        "Servers that run elsewhere: their addresses without /v1, requests at once, and GPUs.",
        "- {name: w1, url: 'http://10.0.0.7:8000', slots: 64, degree: 1}",
    ),
    "gpus": Help("GPUs of the pool for workers of its own; 0: none."),
    "degrees": Help("GPUs that a worker of its own may have.", "[1, 2, 4]"),
    "pool": Help("Pool whose GPUs they take."),
    "slots": Help("Requests at once, for each GPU of a worker of its own."),
    "command": Help(
        "What starts the engine of a worker of its own; it names {port}, and may name {host}, {gpus}, {source}, {model},"
        " {slots}, {python}. Empty: the usual command of the engine.",
        "[python3, -m, my_engine, --port, '{port}']",
    ),
    "python": Help("Interpreter that has torch, for workers of its own with engine torch."),
    "env": Help(
        "Variables of the engine's environment; stored sealed.", "{HF_HOME: /models/cache}"
    ),
    "start_seconds": Help(
        "A worker of its own that has not answered after so long is reported; longer for large models."
    ),
    "policy": Help(
        "Chooses the worker and the order: hedged, or paper for Heddle as it is printed."
    ),
    "transfer": Help(
        "How a cache reaches another worker: shared, lmcache, torch, none. Empty: as the workers say."
    ),
    "predictor": Help(
        "Predicts how long its trajectories become: boosted, history, or one of an installed package."
        " Empty: boosted."
    ),
    "profile": Help(
        "Measured times of its engine and model, for each degree of its workers. Empty: modelled ones.",
        "{degrees: [{degree: 1, batches: [1, 64], contexts: [0], token_seconds: [[0.012], [0.02]],"
        " prefill: [[8192, 0.7]], kv_tokens: 250000}]}",
    ),
    "modelled": Help("Model whose modelled times stand in for a profile: 8b, 14b or 32b.", "14b"),
}
_SELECTOR: Final = {
    "degrees": Help(
        "Degrees of parallelism that it chooses from, the preferred one first.",
        "[{tp: 4}, {tp: 8}]",
    ),
    "target": Help(
        "service:NAME, whose calls get the degree of the first stage. Empty: an outside trainer asks.",
        "service:policy",
    ),
    "stages": Help("Stages that it decides about: rollout, experience, training.", "[rollout]"),
    "contexts": Help("Context lengths at which profiles are measured.", "[4096, 8192, 16384]"),
    "responses": Help("Numbers of responses at which profiles are measured.", "[32, 128]"),
    "observes": Help(
        "fleet:NAME, llm:POOL or service:NAME: their generations and rollouts tell the context, too.",
        "['fleet:qwen']",
    ),
    "context_limit": Help("No response gets longer, in tokens. Empty: no limit."),
    "growth": Help(
        "The longest context of the next step is at most the longest so far, times this."
    ),
    "hysteresis": Help(
        "How far, as a fraction, a context is beyond the border of a range before its degree is taken."
    ),
    "switch_seconds": Help("Seconds of a change of the degree, until one was measured."),
    "pin": Help("Degree that is always used. Empty: it is selected.", "{tp: 8}"),
    "hardware": Help("Use only a profile that was measured on this hardware. Empty: any."),
    "model": Help("Use only a profile of this model. Empty: any."),
    "engine": Help("Use only a profile of this engine. Empty: any."),
}
_NODE_GROUP: Final = {
    "engine": Help("Engine that places its node workers: processes, ssh, ray, slurm, kubernetes."),
    "pool": Help("Pool that its nodes join."),
    "count": Help("Number of nodes. Empty: between min_count and max_count."),
    "min_count": Help("Fewest nodes, where count is empty."),
    "max_count": Help("Most nodes, where count is empty."),
    "cpus": Help("Cores of a node, reserved on the engine."),
    "gpus": Help("GPUs of a node, reserved on the engine."),
    "memory_bytes": Help(
        "Memory of a node, reserved on the engine. 0: what the engine lets it use."
    ),
    "cost_per_hour": Help(
        "Cost of a node, in any unit: of several groups of a pool with bounds the one with most gain for its cost grows."
        " 0: by cores and GPUs, unless all of them declare it."
    ),
    "labels": Help(
        "What a machine must have: custom resources of Ray, features of Slurm, labels of Kubernetes.",
        "{disk: ssd}",
    ),
    "image": Help("Image of the node worker, where the engine runs containers."),
    "isolation": Help("How commands are isolated: auto, bwrap, apptainer or process."),
    "drain_seconds": Help("A node is drained so long before the engine ends it."),
    "max_surge": Help("Nodes beside the wanted ones, at most, while outdated nodes are replaced."),
    "max_unavailable": Help(
        "Nodes fewer than wanted that take actions, at most, while outdated nodes are replaced."
    ),
    "options": Help("Options of the engine.", "{hosts: 'gpu-1,gpu-2', user: tangram}"),
}
#: Kind → member → its help text.
HELPS: Final = {
    "Pool": _POOL, "Project": _PROJECT, "Resource": _RESOURCE, "GpuService": _SERVICE, "Fleet": _FLEET,
    "Selector": _SELECTOR, "NodeGroup": _NODE_GROUP, "Node": _NODE,
}  # fmt: skip
NAME: Final = "Unique name; an existing object of this name is changed."


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
        """Parse the members that are YAML."""
        cleaned: dict[str, Any] = super().clean() or {}
        for name, field in self.fields.items():
            if isinstance(field.widget, forms.Textarea) and cleaned.get(name):
                try:
                    cleaned[name] = _read(cleaned[name])
                except InvalidRequest as error:
                    self.add_error(name, str(error))
        return cleaned

    def document(self) -> dict[str, Any]:
        """Return the document of the fields; empty members are left out."""
        spec = {
            name: self.cleaned_data[name]
            for name in self.fields
            if name != "name" and self._differs(name, self.cleaned_data.get(name))
        }
        meta = {"name": self.cleaned_data["name"]}
        return {"apiVersion": "tangram/v1", "kind": self.kind, "metadata": meta, "spec": spec}

    def _differs(self, name: str, value: Any) -> bool:
        """Return whether a value is neither empty nor the default."""
        return value not in (None, "") and value != self._defaults[name]


def members_of(kind: str) -> tuple[dict[str, Any], list[str]]:
    """Return the schema of each member of a kind's spec, and the names of required ones."""
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
        # A member that may be absent keeps its value, or has its default in a new object.
        choices = [(value or "", value or "as it is") for value in schema["enum"]]
        return forms.ChoiceField(label=label, choices=choices, required=required)
    kinds = {schema.get("type"), *(each.get("type") for each in schema.get("anyOf", ()))}
    if kinds - {None} == {"boolean", "null"}:
        answers = [("", "as it is"), ("True", "yes"), ("False", "no")]
        return forms.TypedChoiceField(
            label=label, choices=answers, coerce="True".__eq__, empty_value=None, required=required
        )
    plain = next((_PLAIN[kind] for kind in kinds if kind in _PLAIN), None)
    if plain is None or kinds & {"array", "object"}:
        area = forms.Textarea(attrs={"rows": 4, "spellcheck": "false", "class": "mono"})
        return forms.CharField(label=f"{label} (YAML)", required=required, widget=area)
    return plain(label=label, required=required and plain is not forms.BooleanField)


def _explain(field: forms.Field, given: Help) -> None:
    example = f" For example: {given.example}" if given.example else ""
    field.help_text = given.text + example


def _read(text: str) -> Any:
    """Return the value of a member's text, parsed as strictly as a whole document."""
    found = documents(text)
    if len(found) > 1:
        raise InvalidRequest("this is more than one document")
    return found[0].value if found else None


def _as_yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
