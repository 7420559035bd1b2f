"""Metrics for Prometheus: how the whole system stands, whichever web process is asked.

Counters and histograms are folded from the journal (`totals`), next to the live frames, and kept in
Redis together with the journal position up to which they count (`store`): they go on where they
were after a restart or a fail-over, and count nothing twice. What stands now (depths, capacity,
nodes, lags, the loop's own passes) is read when somebody scrapes (`standing`), and `exposition`
writes all of it down.

Rules: the prefix ``tangram_``, base units, ``_total`` for what only grows; labels are bounded by
configuration (project, pool, kind, outcome, resource, node state, role), never an id. Every web
process answers the same, so scrape one address, or aggregate with ``max``.
"""
