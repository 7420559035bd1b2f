"""Small language model on CPU that reinforcement learning improves: a server of tokens and a trainer of it, for examples."""
