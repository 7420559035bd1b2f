"""The pages people watch: live overview, actions, one action."""
