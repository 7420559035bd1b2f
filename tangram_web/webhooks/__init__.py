"""Webhooks: signed events to other systems, by the Standard Webhooks specification."""
