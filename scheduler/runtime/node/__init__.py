"""Node worker: executes the commands of the loop on this machine, and reports.

Theory of operation. Commands arrive on a stream of the node, one entry per scheduling cycle. The
worker keeps its *position*: the last entry up to which every command is *settled*, that is, its
effect is durable: a starting mark on the local disk, or a report in the inbox. After a crash it
first ends the runs that its predecessor left, reports them, joins, and reads on from its position. A
command that it reads a second time is recognised by its mark; a mark is dropped once the position is
behind its command and the report of its end is on disk. So no command that may have been executed
runs twice (I3), and no run is lost (I1).

``noop`` needs no mark: it has no effect, and is reported again.
"""
