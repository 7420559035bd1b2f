"""HTTP requests to declared APIs and GPU services: one exchange, its egress guard, its secrets."""
