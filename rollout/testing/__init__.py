"""Testing of handlers and workers without a server: a port in memory that keeps the rules of the real one."""
