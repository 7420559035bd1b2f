"""One command that starts a whole Tangram on one machine, keeps it up, and ends all it started.

Theory of operation
1. Everything is a child of this process: Redis (unless a URL names one), web, loop, node,
   projector, demo load. A child that dies is started again, ever later (`backoff`).
2. Children are started in the order of their needs and ended in the reverse order, Redis last.
3. The kernel ends them too when this process is killed (`children`), so nothing is left behind.
4. One folder holds all data; one Tangram at a time may run from it (`home`).
5. No module here imports Django, Celery or the scheduler: those cost seconds, and only the
   children need them. What needs the database is one short-lived child, `manage.py setup`.
"""
