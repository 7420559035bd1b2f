"""Policies of placement: `paper` as Heddle prints it, `hedged` (default) that is never worse than the best of plain routers."""
