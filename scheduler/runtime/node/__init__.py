"""The node worker: runs what the loop grants on this machine, and reports.

Theory of operation. Commands come on a stream of this node's own, one entry per scheduling cycle.
The worker keeps its *position*: the last entry before which every command is *settled*, that is,
its effect is durable elsewhere: a starting mark on this disk, or a report in the inbox. After a
crash it first ends what its predecessor left running, reports that, joins, and reads on from its
position. A command that it reads a second time is recognised by its mark; marks are dropped only
once the position is behind their command and the report of their end is on disk. So nothing that
may have been delivered runs twice (I3), and nothing that ran is forgotten (I1).

``noop`` needs no mark: it has no effect, and is simply reported again.
"""
