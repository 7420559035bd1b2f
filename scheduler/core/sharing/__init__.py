"""Projects that share the resources of a pool: who may take how much of them."""
