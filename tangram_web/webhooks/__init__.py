"""Webhooks: telling other systems what happened, by the Standard Webhooks specification."""
