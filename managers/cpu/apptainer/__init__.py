"""Isolation ``apptainer`` of the process driver: environments by Apptainer, without root and without a daemon.

Theory of operation. A sandbox of this driver is a command line (`managers.cpu.process.sandbox`). `ApptainerSandbox` writes
``apptainer exec`` where the other writes ``bwrap``; sessions, files, live output, limits, rewards and forks stay those
of the process driver. An environment is one ``apptainer exec`` that lasts: its command is the init that starts all
programs (`managers.cpu.environment.init`). ``instance start`` is not used: it fails when the worker runs in a container.

    worker
      apptainer                 outside: mounts, and waits for process 1; drivers of its file systems beside it
        sinit                   process 1 inside: reaps orphans; its end ends all
          sh -s                 the init
            commands            in a session each

Rules
1. The programs of an environment are found and ended by their tags (`managers.cpu.process.process_tag`) and by process 1
   of their namespace, never by a name: a command gets SIGTERM and later SIGKILL, an environment ends with process 1.
2. The root of an environment is an overlay that Apptainer mounts: the image (a SIF file, or a folder) below, sealed layers
   of forks as read-only overlays, and the environment's own layer (`managers.cpu.tree.mounts.ApptainerOverlay`).
   One process at a time mounts it for writing: a command in a sandbox of its own (a reward, a GPU, ``egress``) ends the
   living environment before. Forks copy the layer; they never move it.
3. Programs are root of a user namespace (``--fakeroot``). With a range of subordinate ids they have all users of the image;
   without one they have root alone.
4. ``network: none`` and ``egress`` are ``--net --network none``: a namespace with a loopback. Each environment has a loopback
   address of its own, 127.x.y.z in ``TANGRAM_LOOPBACK``, also where it shares the node's network (`starts`).
5. At most `ApptainerSettings.starts` environments of one image start at once: each start reads the image.
6. A definition belongs to the operator of the node, an image's name to any submitter: of a name only a tag of harmless
   characters gets into a definition (`definitions`).

Lifetimes. A SIF file is built at the first use of its name, from a definition or a Jinja2 template, and then stored as an
image of the node (`builder`, `cache`): an environment that has begun keeps its image. A build is a process of the driver
with a tag of its own; the next worker ends what a dead one was building, and drafts never have the name of an image.

    settings.py     settings of an operator
    program.py      the program of this machine, and what the machine permits it
    definitions.py  definitions and templates by the name of an image
    cache.py        SIF files: built for one use, by content, or once for all workers
    builder.py      from an image's name to an image of the node
    sandbox.py      command lines of ``apptainer exec``
    starts.py       starts at once, and loopback addresses
    rootfs.py       the same definitions as folders, for bubblewrap

Tested against a program that records its command line and runs it by bubblewrap (``tests/apptainer_stand_in.py``), since
Apptainer cannot be had where the tests run: docs/apptainer.md says what follows from that.
"""
