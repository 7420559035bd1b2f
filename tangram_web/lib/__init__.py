"""Helpers of the Django project without models of their own."""
