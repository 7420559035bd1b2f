"""Dispatcher: moves the tensors of a training batch from the ranks that made them to the ranks that train on them (EARL, §2).

A library for trainers. It needs numpy alone (1.24 or later, Python 3.11), imports nothing else of Tangram, and knows no scheduler:
a trainer describes where its tensors are and where they are wanted, and the ranks exchange them directly, without a controller
that gathers and scatters them.

Rules
1. A *layout* says which rank holds which part of each named tensor. It is data: equal layouts have equal descriptions, on each rank and
   machine, and are compared before a byte leaves.
2. `plan` is pure: source layout, target layout and hosts give the transfers, the same on each rank. What is in place stays. Each
   other byte crosses once, from one replica, its own host's first, so that the busiest endpoint has the least to carry.
3. A *strategy* (nothing, pairs, all-to-all, gather-scatter) is chosen by predicted seconds, and has no effect on the result.
4. A transport moves bytes as planned, without pickle. It ends with the tensors complete and checked, or with an error that names
   the rank that failed, on each rank and within seconds. Half a batch is never returned.

Lifetimes. Layouts and plans are immutable values, and may be kept for as long as shapes stay the same. A transport belongs to a group of
ranks, is opened once, and is closed by its owner or by the first error.
"""
