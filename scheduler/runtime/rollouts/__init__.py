"""Rollouts in the runtime: their logs, the port of their workers, the role that hosts these, and their views."""
