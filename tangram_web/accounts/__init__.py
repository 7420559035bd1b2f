"""Memberships and roles in projects, and the pages of accounts."""
