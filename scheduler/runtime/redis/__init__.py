"""Redis as the runtime uses it: connections, scripts, streams and the journal."""
