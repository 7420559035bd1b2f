"""Endpoints of the gateway: each module has the handlers of one group of routes (`contract.routes`)."""
