"""Our own agent: `loop` decides each step, `run_agent` does them with a model and `tools`; `bash` runs in a `tool_session`."""
