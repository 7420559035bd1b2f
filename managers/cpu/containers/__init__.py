"""The driver for containers of a Docker Engine: one for each trajectory, cores only while acting.

Theory of operation. A container lives as long as its trajectory (paper §5.2): memory is reserved for
that time, cores are not. Around each action the driver *grows* the container to the granted cores,
runs the command, and *shrinks* it to a small share of the parked ones. Two backends do that:

- **direct**: cores are files of the container's control group, which is below a parent of our own.
  The container's first process is a shell that reads commands from the stream that the engine
  attached to it. An action costs some writes and one fork.
- **api**: `docker update` and `docker exec`, as in the paper: two orders of magnitude slower, but
  independent of the machine that the engine runs on.

The driver tries the direct backend when it opens, and again for every container.

Rules
1. A command cannot forge its end. Its output goes to named pipes; its exit status comes on the shell's
   own stream. The shell runs from a copy without read permission, so the kernel marks it not
   dumpable: even the container's root cannot read its memory or its descriptors. As the first process
   of its namespace it cannot be signalled from inside.
2. Grow, run, shrink; the *effective* cores are read back each time (I10). A sweep repairs foreign
   changes (`docker update` rewrites everything the engine stores) and counts them.
3. A completed action may leave processes in the background, which have its tag, are recorded, and run on
   shared cores. All others but sessions and the first process are frozen, killed and searched for again before
   the action is over; so is everything of one that was stopped, and of the command of a reward.
4. A start mark is on disk before a command is sent to a container (I3).
5. Our containers carry our labels; no others are touched, whatever their names (I7). Every 30 s the
   engine's containers are compared with the records.
6. A lost container is not replaced silently: the trajectory's work in it is lost, so its later actions
   fail with the reason.

Lifetimes. A *record* on disk is written before a container is created and deleted after it was
removed, so that every start can distinguish orphans (label without record) from losses (record without
container). A restarted driver adopts its predecessor's containers. Beyond their expiry any Tangram
removes them.

    driver.py             the driver interface of the node worker
    survey.py             choice of the backend and of disks, when the driver opens
    layer_disks.py        everything that a container can write to, on the disk of its environment
    run.py                one action, from order to report
    exec_backends.py      the interface of both backends · cgroup_backend.py · engine_backend.py
    environment_store.py  all environments, from creation to removal · warm_pool.py  created in advance
    environment.py        one of them, and its record · reconcile.py  comparison with the engine
    shell.py              the protocol of the shell inside a container
    living.py             an init beside the shell: what lasts between actions · living_store.py · sessions.py
    cgroups.py            control groups, versions 1 and 2
    container_config.py   configuration of a new container
    invocation.py         command, variables and input of an order
    moving.py             moves to another node · packed.py  what is sent · image_layers.py
    docker_engine.py      the Docker SDK, off the event loop
    settings.py           settings of an operator
"""

from __future__ import annotations

from managers.cpu.containers.driver import ContainerDriver

__all__ = ["ContainerDriver"]
