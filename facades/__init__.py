"""Facades: other protocols in front of the gateway, each a translation onto the native API."""
