"""Local nodes: node workers on the machine of the leader, which speak with it over a Unix socket.

Through Redis, a command and its report cost two reads, one write and one fsync of it, and the wake-ups of those. The
socket saves them. Redis stays the record, and the only way to a node of another machine.

Rules
1. A command is sent here after its journal entry and its entry in the node's stream are on disk. It names the entry
   before it in that stream: a node that has not read that one reads the stream.
2. A node also reads its stream with each heartbeat, since the leader at the other end may have been replaced.
3. A report that was sent here is confirmed when the journal entry that has it is on disk. When the connection ends, the
   node sends the reports without a confirmation to the inbox. The core ignores a report that it has already.
4. Order of reports: the leader takes reports here after it has settled the last one that the node wrote to the inbox, and
   within a pass before the messages of the inbox.
5. A leader whose pass failed closes all connections: the search for the message to blame knows the inbox only.
6. The leader accepts processes of its own user and of root.
"""
