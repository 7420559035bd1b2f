"""Benchmark of the dispatcher: transports against one controller and rivals, on shaped links and without, and the costs of plans."""
