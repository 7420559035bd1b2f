"""Supervisor: one command that starts a whole Tangram on one machine, restarts its parts, and ends them.

Theory of operation
1. Every part is a child of this process: Redis (unless a URL names one), web, loop, node,
   projector, jobs, demo load. A child that dies is restarted after growing pauses (`children.Backoff`).
2. Children start in the order of their dependencies and end in the reverse order, Redis last.
3. The kernel ends them when this process is killed (`children`), so no process is left behind.
4. One folder holds all data; one Tangram at a time may run from it (`data_folder`).
5. No module here imports Django, Celery or the scheduler: those cost seconds, and only the
   children need them. One short-lived child, `python -m tangram_web setup`, prepares the
   database.
"""
