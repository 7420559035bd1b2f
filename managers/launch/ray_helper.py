"""The launcher's process inside Ray: a request as a line of JSON on standard input, an answer on standard output.

Run by the Python that has Ray (`managers.launch.ray_cluster`); it imports Ray and the standard library alone.

Theory of operation. An instance is a detached named actor and a detached placement group of one bundle, both named
``INSTALLATION/GROUP/NAME`` in the namespace `NAMESPACE`. The bundle reserves cores, memory, GPUs and the resource that each machine
has once, so that no machine has two node workers. The actor takes the whole bundle; its process starts a guard (`process_guard`),
which starts the node worker. When one of the three ends, the others do, and Ray starts the actor again, on a machine
that has the bundle.

What Ray does not keep is in its key-value store: ``ending/KEY`` (when the instance was asked to end, and how far that is),
``starts/KEY`` (starts of the actor, and why the last one ended), ``lost/KEY`` (since when its machine is gone), ``fingerprint/KEY`` (of its order), ``access/INSTALLATION`` (URL and token for trainers in Ray).

1. The classes here are pickled by value, because this file runs as ``__main__``: machines need nothing of ours for them.
2. A placement group is removed only once its guard has confirmed that nothing is left, or could not for `LEFT_SECONDS`, within which
   a guard whose actor was killed has cleaned up.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

NAMESPACE = "tangram"
#: A guard whose actor is dead has ended the node worker by then: `process_guard.GRACE_SECONDS`, and as much for the rest.
LEFT_SECONDS = 30.0
#: An actor that does not answer an end for so long is killed.
FORCE_SECONDS = 60.0
#: A machine that is cut off from Ray ends its actors within this time. For as long Ray may place an instance elsewhere; then it is listed
#: as failed, because Ray tries without a pause, which keeps a core of its head busy.
CUT_OFF_SECONDS = 60.0
#: A node worker that ends at once is not started more often than this.
RESTART_SECONDS = 5.0
_ANSWER_SECONDS = 3.0
#: Variables that the node worker has from its machine; those of Ray's workers are not for it.
_KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "NVIDIA_VISIBLE_DEVICES",
)  # fmt: skip


# --- the store ------------------------------------------------------------------------------------------------------------------


def put(key: str, value: Any) -> None:
    """Store a value of JSON in Ray's key-value store."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(key, json.dumps(value), overwrite=True, namespace=NAMESPACE)


def get(key: str) -> Any:
    """Return a value; None where there is none."""
    from ray.experimental import internal_kv

    found = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
    return None if found is None else json.loads(found)


def forget(key: str) -> None:
    """Delete all that is stored of an instance."""
    from ray.experimental import internal_kv

    for kind in ("ending", "starts", "lost", "fingerprint"):
        internal_kv._internal_kv_del(f"{kind}/{key}", namespace=NAMESPACE)


def now() -> float:
    """Return the wall clock, seconds since the epoch, which several keepers share."""
    return time.clock_gettime(time.CLOCK_REALTIME)


# --- in the actor ---------------------------------------------------------------------------------------------------------------


class NodeInstance:
    """Actor of Ray that holds one node worker."""

    def __init__(self, key: str, order: dict[str, Any], guard: str) -> None:
        """``guard``: text of `process_guard`."""
        self._key, self._ended = key, ""
        stored = get(f"starts/{key}") or {"starts": 0, "reason": ""}
        self._starts, self._reason = stored["starts"] + 1, stored["reason"]
        put(f"starts/{key}", {"starts": self._starts, "reason": self._reason})
        self._is_ending = get(f"ending/{key}") is not None
        self._state = "gone" if self._is_ending else "starting"
        if self._is_ending:
            return
        self._channel, its = socket.socketpair()
        # The guard forks and ends at once; what goes on is no child of this process.
        subprocess.run([sys.executable, "-I", "-c", guard], stdin=its.fileno(), check=True)
        its.close()
        line = {"command": order["command"], "environment": self._variables(order["environment"])}
        self._channel.sendall(json.dumps(line).encode() + b"\n")
        threading.Thread(target=self._follow, daemon=True).start()

    def facts(self) -> dict[str, Any]:
        """Return what the list says of the instance."""
        return {"state": self._state, "starts": self._starts, "reason": self._reason}

    def end(self) -> None:
        """Let the guard end everything; ``facts`` says when nothing is left. The actor stays until it is killed."""
        if not self._is_ending:
            self._is_ending = True
            with contextlib.suppress(OSError):
                self._channel.sendall(b"end\n")

    def _variables(self, given: dict[str, str]) -> dict[str, str]:
        import ray

        variables = {name: os.environ[name] for name in _KEPT if name in os.environ}
        variables.update(given)
        variables.update(gpu_variables(ray.get_gpu_ids(), os.path.exists("/dev/nvidiactl")))
        door = given.get("TANGRAM_NODE_DOOR", "")
        if door and not given.get("TANGRAM_NODE_DOOR_ADDRESS"):
            address = f"{ray.util.get_node_ip_address()}:{door.rpartition(':')[2]}"
            variables["TANGRAM_NODE_DOOR_ADDRESS"] = address
        return variables

    def _follow(self) -> None:
        """Read what the guard says until it has ended."""
        began = time.monotonic()
        why = "its guard was killed"
        with contextlib.suppress(OSError), self._channel.makefile() as lines:
            for line in lines:
                fact = json.loads(line)
                if "started" in fact:
                    self._state = "running"
                elif "failed" in fact:
                    why = f"the node worker cannot be started: {fact['failed']}"
                else:
                    why = f"the node worker ended with exit code {fact['ended']}"
        if self._is_ending:
            self._state = "gone"
            return
        self._state, self._reason = "restarting", why
        put(f"starts/{self._key}", {"starts": self._starts, "reason": why})
        time.sleep(max(0.0, began + RESTART_SECONDS - time.monotonic()))
        if self._is_ending:
            self._state = "gone"
            return
        os._exit(1)  # Ray starts the actor again, here or elsewhere


def gpu_variables(granted: Iterable[int | str], is_real: bool) -> dict[str, str]:
    """Return the variables for the GPUs that Ray granted; without NVIDIA's driver they are only declared."""
    names = [str(each) for each in granted]
    if not names:
        return {"TANGRAM_NODE_GPUS": "0"}
    return {"TANGRAM_NODE_GPUS": "nvml:" + ",".join(names) if is_real else str(len(names))}


# --- in the launcher's process --------------------------------------------------------------------------------------------------


class ClusterView:
    """What Ray has, read once for a request."""

    def __init__(self, prefix: str) -> None:
        import ray
        from ray.util import list_named_actors
        from ray.util.placement_group import placement_group_table

        self.nodes = {node["NodeID"]: node for node in ray.nodes()}
        self.actors = {name for name in list_named_actors() if name.startswith(prefix)}
        self.groups = {
            group["name"]: group
            for group in placement_group_table().values()
            if group["state"] != "REMOVED" and group["name"].startswith(prefix)
        }
        self.draining = draining_until()

    def machine_of(self, key: str) -> tuple[str, str]:
        """Return id and name of the machine of an instance; empty while it has none."""
        group = self.groups.get(key)
        if group is None or group["state"] != "CREATED":
            return "", ""
        node = next(iter(group["bundles_to_node_id"].values()), "")
        known = self.nodes.get(node)
        return (node, known["NodeName"]) if known and known["Alive"] else ("", "")


def draining_until() -> dict[str, float]:
    """Return the nodes that Ray drains, and until when: wall clock, seconds. Without a deadline: now."""
    try:
        from ray._private.state import state

        found = state.get_draining_nodes()
    except (
        ImportError,
        AttributeError,
    ):  # no public interface says it; without one there is no notice
        return {}
    return {node: at / 1000 if at else now() for node, at in found.items()}


def ask(actors: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the facts of those actors that answer in time."""
    import ray

    calls = {actor.facts.remote(): key for key, actor in actors.items()}
    ready, _ = (
        ray.wait(list(calls), num_returns=len(calls), timeout=_ANSWER_SECONDS)
        if calls
        else ((), ())
    )
    found = {}
    for each in ready:
        with contextlib.suppress(ray.exceptions.RayError):
            found[calls[each]] = ray.get(each)
    return found


def actor_of(key: str) -> Any:
    """Return the actor of an instance; None where Ray has none."""
    import ray

    try:
        return ray.get_actor(key, namespace=NAMESPACE)
    except ValueError:
        return None


def instances(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the instances of a group, and remove those of which nothing is left."""
    prefix = f"{request['installation']}/{request['group']}/"
    view = ClusterView(prefix)
    placed = {key: actor_of(key) for key in view.actors if view.machine_of(key)[0]}
    facts = ask({key: actor for key, actor in placed.items() if actor is not None})
    found = []
    for key in sorted(view.actors | set(view.groups)):
        ending = get(f"ending/{key}")
        if key not in view.actors or key not in view.groups:
            # Ray has given up, an operator has killed one of the two, or a launch stopped halfway.
            ending = ending or _mark(key, {"at": now(), "killed": now()})
        if ending is not None and _is_gone(key, view, facts.get(key), ending):
            continue
        found.append({"name": key[len(prefix) :], **described(key, view, facts.get(key), ending)})
    return found


def described(
    key: str, view: ClusterView, facts: dict[str, Any] | None, ending: Any
) -> dict[str, Any]:
    """Return what the list says of an instance. ``facts``: of its actor, where it answers; ``ending``: the mark of its end."""
    node, machine = view.machine_of(key)
    starts = get(f"starts/{key}") or {"starts": 0, "reason": ""}
    fact = {
        "state": "pending", "handle": f"actor {key}", "machine": machine, "ends_at": view.draining.get(node),
        "reason": starts["reason"], "restarts": max(0, starts["starts"] - 1),
        "fingerprint": get(f"fingerprint/{key}") or "",
    }  # fmt: skip
    group = view.groups.get(key, {"state": "REMOVED", "bundles": {}})
    since = lost_since(key, group["state"])
    if ending is not None:
        fact["state"] = "ending"
    elif group["state"] != "CREATED":
        bundle = sorted(group["bundles"].get(0, {}).items())
        wanted = ", ".join(f"{name} {n:g}" for name, n in bundle)
        lost = "its machine left Ray, and " if since else ""
        fact["reason"] = f"{lost}no machine of Ray has free: {wanted}"
        if since and now() - since > CUT_OFF_SECONDS:
            fact["state"] = "failed"
    elif facts is None:
        fact["reason"] = starts["reason"] or "Ray starts its actor"
    elif facts["state"] == "running":
        fact["state"] = "running"
    if fact["ends_at"] is not None and ending is None:
        fact["reason"] = "Ray drains its machine"
    return fact


def lost_since(key: str, state: str) -> float | None:
    """Return since when the machine of an instance is gone, as it was first seen; None while it has one, or had none."""
    since: float | None = get(f"lost/{key}")
    if state == "RESCHEDULING" and since is None:
        since = now()
        put(f"lost/{key}", since)
    elif state == "CREATED" and since is not None:
        since = None
        put(f"lost/{key}", since)
    return since


def _is_gone(
    key: str, view: ClusterView, facts: dict[str, Any] | None, ending: dict[str, Any]
) -> bool:
    """Go on with an end; return whether nothing is left."""
    import ray

    actor = actor_of(key)
    killed = killed_at(key, view.groups.get(key, {"state": "REMOVED"})["state"], facts, ending)
    if killed is None:
        if facts is not None and actor is not None:
            actor.end.remote()  # a former call is lost with the process that made it
        return False
    _mark(key, {**ending, "killed": killed})
    if actor is not None:
        ray.kill(actor, no_restart=True)
    if now() - killed < LEFT_SECONDS:
        return False
    with contextlib.suppress(ValueError):
        ray.util.remove_placement_group(ray.util.get_placement_group(key))
    forget(key)
    return True


def killed_at(
    key: str, state: str, facts: dict[str, Any] | None, ending: dict[str, Any]
) -> float | None:
    """Return since when no process of an ending instance can start any more; 0: none is left, None: its guard ends it in order."""
    if facts is not None and facts["state"] == "gone":
        return 0.0
    if "killed" in ending:
        return float(ending["killed"])
    if state == "PENDING":
        return 0.0  # it was never placed
    if state == "RESCHEDULING":
        return (lost_since(key, state) or now()) + CUT_OFF_SECONDS
    return now() if now() - ending["at"] > FORCE_SECONDS else None


def _mark(key: str, ending: dict[str, Any]) -> dict[str, Any]:
    put(f"ending/{key}", ending)
    return ending


def launch(request: dict[str, Any]) -> None:
    """Reserve a machine and create the actor, unless Ray has one of that name."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    key = f"{request['installation']}/{request['group']}/{request['name']}"
    if get(f"ending/{key}") is not None or actor_of(key) is not None:
        return
    forget(key)
    put(f"fingerprint/{key}", request["fingerprint"])
    bundle = dict(request["bundle"])
    group = _placement_group(key, bundle, request["labels"])
    cpus, gpus, memory = bundle.pop("CPU", 0), bundle.pop("GPU", 0), bundle.pop("memory", None)
    ray.remote(NodeInstance).options(
        name=key, namespace=NAMESPACE, lifetime="detached", get_if_exists=True,
        max_restarts=-1, max_concurrency=2, num_cpus=cpus, num_gpus=gpus, memory=memory, resources=bundle,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
    ).remote(key, request["order"], request["guard"])  # fmt: skip


def _placement_group(key: str, bundle: dict[str, float], labels: dict[str, str]) -> Any:
    import ray

    for attempt in (1, 2):
        try:
            return ray.util.get_placement_group(key)
        except ValueError:
            pass  # there is none
        try:
            chosen = {"bundle_label_selector": [labels]} if labels else {}
            return ray.util.placement_group([bundle], name=key, lifetime="detached", **chosen)
        except ray.exceptions.RaySystemError:
            if attempt == 2:  # another keeper was faster
                raise
    return None


def end(request: dict[str, Any]) -> None:
    """Mark an instance as ending, and let its guard begin."""
    key = f"{request['installation']}/{request['group']}/{request['name']}"
    view = ClusterView(key)
    if key not in view.actors and key not in view.groups:
        return
    ending = get(f"ending/{key}") or _mark(key, {"at": now()})
    facts = ask({key: actor_of(key)}) if view.machine_of(key)[0] and key in view.actors else {}
    _is_gone(key, view, facts.get(key), ending)


def machines(_: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the living machines of Ray, with what they offer."""
    import ray

    return [
        {"name": node["NodeName"], "resources": node["Resources"], "labels": node.get("Labels", {})}
        for node in ray.nodes()
        if node["Alive"]
    ]


def publish(request: dict[str, Any]) -> None:
    """Store URL and token for trainers in Ray."""
    key = f"access/{request['installation']}"
    if get(key) != request["access"]:
        put(key, request["access"])


VERBS = {
    "instances": instances,
    "launch": launch,
    "end": end,
    "machines": machines,
    "publish": publish,
}


def connect(address: str) -> None:
    """Connect to Ray. Raises OSError where nothing listens, and what Ray raises."""
    import ray

    host, colon, port = address.rpartition(":")
    if colon and "/" not in address:
        socket.create_connection((host, int(port)), 5.0).close()  # Ray itself tries for minutes
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")


def _requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def main(address: str) -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is no answer

    def answer(fact: dict[str, Any]) -> None:
        answers.write(json.dumps(fact) + "\n")
        answers.flush()

    try:
        connect(address)
    except ImportError:
        answer({"error": "this Python has no Ray", "kind": "no ray"})
        return
    except Exception as error:  # whatever Ray raises on its way to a cluster
        answer({"error": f"{type(error).__name__}: {error}", "kind": "no cluster"})
        return
    answer({})
    for request in _requests():
        try:
            answer({"answer": VERBS[request["verb"]](request)})
        except Exception as error:  # whatever Ray raises is the answer
            answer({"error": f"{type(error).__name__}: {error}", "kind": "refused"})


if __name__ == "__main__":
    main(sys.argv[1])
