"""The HTTP contract: routes and the JSON bodies of the hot endpoints."""
