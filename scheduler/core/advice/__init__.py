"""Questions about a state: why an action waits, what would free it, and when. Nothing here changes state."""
