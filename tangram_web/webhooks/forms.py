"""Forms of endpoints; the services validate their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import forms

from domain.errors import InvalidRequest
from tangram_web.webhooks.models import WebhookEvent


class EndpointForm(forms.Form):
    """Address and events of an endpoint; ``projects`` is None for an endpoint that exists."""

    url = forms.CharField(max_length=500)
    events = forms.MultipleChoiceField(choices=WebhookEvent.choices)
    enabled = forms.BooleanField(required=False)

    def __init__(self, projects: Iterable[str] | None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if projects is not None:
            names = [(name, name) for name in projects]
            self.fields["project"] = forms.ChoiceField(choices=names)

    def add_pointed_error(self, error: InvalidRequest) -> None:
        """Show ``error`` at the field that it points at."""
        field = (error.pointer or "").removeprefix("/")
        self.add_error(field if field in self.fields else None, str(error))
