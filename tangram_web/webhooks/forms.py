"""Forms of endpoints. What may stand in them is judged by the services."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import forms

from domain.errors import InvalidRequest
from tangram_web.webhooks.models import WebhookEvent


class EndpointForm(forms.Form):
    """Where to tell what; ``projects`` None: of an endpoint that has one already."""

    url = forms.CharField(max_length=500)
    events = forms.MultipleChoiceField(choices=WebhookEvent.choices)
    enabled = forms.BooleanField(required=False)

    def __init__(self, projects: Iterable[str] | None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if projects is not None:
            names = [(name, name) for name in projects]
            self.fields["project"] = forms.ChoiceField(choices=names)

    def blame(self, error: InvalidRequest) -> None:
        """Put ``error`` at the field that it points at."""
        field = (error.pointer or "").removeprefix("/")
        self.add_error(field if field in self.fields else None, str(error))
