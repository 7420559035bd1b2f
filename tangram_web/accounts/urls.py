"""Addresses of the pages about people."""

from __future__ import annotations

from django.contrib.auth.views import PasswordChangeView
from django.urls import URLPattern, path, reverse_lazy

from tangram_web.accounts import views

app_name = "accounts"

urlpatterns: list[URLPattern] = [
    path("", views.members, name="members"),
    path("<int:number>/remove", views.remove, name="remove"),
    path("tokens/", views.tokens, name="tokens"),
    path("tokens/<slug:key>/revoke", views.revoke, name="revoke"),
    path("sessions/", views.sessions, name="sessions"),
    path("sessions/end", views.end, name="end"),
    path(
        "password/",
        PasswordChangeView.as_view(
            template_name="accounts/password.html",
            success_url=reverse_lazy("accounts:sessions"),
            extra_context={"page": "people"},
        ),
        name="password",
    ),
]
