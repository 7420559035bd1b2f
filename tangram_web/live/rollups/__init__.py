"""Rollups: counts, levels and duration histograms of one second, 15 s or 5 min, for charts.

A second is closed by `recent` and becomes a `rollup`; coarser rollups are merged from finer ones,
written to Redis by `store` and read back as the points of a chart by `query`. `projects` does the
same for single projects.
"""
