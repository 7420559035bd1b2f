"""Runtime: the shell around the pure core, with everything that waits.

Theory of operation. The *gateway* appends the requests of trainers to the inbox stream. The *loop*
is the only reader of the inbox and the only writer of the journal: it reads a batch, stamps journal
time, asks the machine, and commits events, decisions and node commands in one script that first
checks its epoch. *Node workers* execute their commands and report into the inbox. Waiting requests,
rows and frames follow the journal.

Rules
1. A request is answered once it is on disk: the gateway answers after its append, and the loop sends
   commands by its commit only.
2. The machine may be ahead of the journal for the length of one commit. When a commit fails, the
   machine is dropped and rebuilt from the journal: there is no other recovery path.
3. The inbox position is part of each journal entry, so every message is handled exactly once.
4. At most one leader writes: each write checks the epoch in Redis, nodes refuse older epochs.
5. Nothing here imports Django or Celery; composition roots pass in what is needed of them.
"""
