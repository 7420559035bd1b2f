"""Metrics for Prometheus, of the whole system and equal in each web process.

Counters and histograms are folded from the journal (`totals`), next to the live frames, and stored
in Redis with the journal position up to which they count (`store`): they continue after a restart
or a fail-over and count nothing twice. Present values (depths, capacity, nodes, lags, cycles of the
loop) are read at each scrape (`reading`); `exposition` renders all of it.

Rules: the prefix ``tangram_``, base units, ``_total`` for counters; labels are bounded by
configuration (project, pool, kind, outcome, resource, node state, role), never an id. Scrape one
web process, or aggregate with ``max``.
"""
