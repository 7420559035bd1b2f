"""Doors for protocols that trainers already speak; each is a thin translation onto the native API."""
