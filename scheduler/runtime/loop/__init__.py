"""The scheduler loop: one leader reads the inbox, runs the core, and commits its decisions."""
