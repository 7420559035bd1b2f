"""The driver for containers of a Docker Engine: one for each trajectory, cores only while acting.

Theory of operation. A container lives as long as its trajectory (paper §5.2): memory is reserved for
that life, cores are not. Around each action the driver *grows* the container to the granted cores,
runs the command, and *shrinks* it to a sliver of the parked ones. There are two ways to do that:

- **direct**: cores are files of the container's control group, which lies below a parent of our own.
  The container's first process is a shell that reads what to run from the stream that the engine
  attached to it. An action costs some writes and one fork.
- **api**: `docker update` and `docker exec`, as in the paper: two orders of magnitude slower, but it
  needs nothing of the machine that the engine runs on.

Which one works is tried when the driver opens, and again for every container.

Rules
1. The end of an action comes from where it has no access. Its output goes to named pipes; its exit
   status comes on the shell's own stream. The shell runs from a copy without permission to read, so
   the kernel marks it not dumpable: even the container's root cannot look into its memory or its
   descriptors. As the first process of its namespace it cannot be signalled from inside.
2. Grow, run, shrink; the *effective* cores are read back each time (I10). A sweep repairs what
   somebody else changed (`docker update` rewrites everything the engine stores) and counts it.
3. An action is over when nothing of it is left in the container: all other processes than the first
   are frozen, killed and looked for again.
4. A starting mark is on disk before a command goes to a container (I3).
5. What we made carries our labels; nothing else is touched, whatever its name (I7). Every 30 s what
   is there is compared with what should be.
6. A container that is gone is not replaced silently: what the trajectory built in it is lost, so its
   later actions fail and say why.

Lifetimes. A *record* on disk is written before a container is created and deleted after it was
removed, so that every start can tell orphans (label without record) from losses (record without
container). A driver that starts again adopts its predecessor's containers. Beyond their expiry they
are removed by whichever Tangram sees them.

One module, one thing:

    driver.py        what the node worker talks to
    survey.py        which way works here, and who we are
    run.py           the life of one action, from order to report
    tools.py         what all runs share
    ways.py          what both ways have in common · direct.py · api.py
    environments.py  which containers there are, from creation to removal
    warm.py          those that are made before they are needed
    environment.py   one of them · records.py  the durable list · reconcile.py  comparing with the engine
    shell.py         the shell inside a container, and what is said to it
    placing.py       where that shell comes from
    cgroups.py       control groups, versions 1 and 2 · trees.py  where they are
    creation.py      what a container is created with
    command.py       what exactly is executed for an order
    engine.py        the Docker SDK, off the event loop
    settings.py      what an operator may set
"""

from __future__ import annotations

from managers.cpu.containers.driver import ContainerDriver

__all__ = ["ContainerDriver"]
