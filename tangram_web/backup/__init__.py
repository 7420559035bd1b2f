"""Backup and restore: one folder with the database and what Redis holds.

A backup is taken while everything runs. The database comes first and Redis second: the rows then
stand at an earlier place of the journal than Redis does, and the projector goes on from there. (The
other way round it would skip what the journal no longer has.) Redis is read in one transaction.

A restore goes back in time, and says so:

- It refuses to work while somebody leads, and into a Redis that holds a Tangram, unless told to.
- The epoch jumps ahead, so whoever still follows a leader of before the restore is fenced (I8).
- What was accepted but not finished at the time of the backup may have run since. What ran then
  ends as ``unknown``, what waited as ``cancelled``, with that reason; only what its trainer
  declared ``replay_safe`` begins anew. So nothing runs twice that must not (I3).
- Commands to nodes, signs of life and frames are left out: they are about processes, and those are
  other ones now.
"""
