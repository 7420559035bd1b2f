"""The state of the core: what it knows, how it is found, stored and checked."""
