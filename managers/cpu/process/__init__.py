"""The driver for plain processes: commands run on this node, in a directory per trajectory.

One module, one thing:

    driver.py      what the node worker talks to
    run.py         the life of one action, from order to report
    launcher.py    the thread that writes starting marks and spawns
    command.py     what exactly is executed: arguments, environment variables
    limits.py      what it may use
    sandbox.py     bubblewrap, where it works
    seal.py        the mark that every process of an action carries and cannot lose
    processes.py   finding and ending processes by that mark
    marks.py       the durable list of what was started
    locks.py       one driver per state directory
    output.py      what a command printed, up to a limit
    workspace.py   directories of trajectories · files.py  files in them · trees.py  deleting them
"""

from __future__ import annotations

from managers.cpu.process.driver import ProcessDriver

__all__ = ["ProcessDriver"]
