"""Addresses of the webhooks."""

from __future__ import annotations

from django.urls import URLPattern, path

from tangram_web.webhooks import views

app_name = "webhooks"

urlpatterns: list[URLPattern] = [
    path("", views.endpoints, name="list"),
    path("<str:key>/", views.endpoint, name="one"),
    path("<str:key>/rotate", views.rotate, name="rotate"),
    path("<str:key>/ping", views.ping, name="ping"),
    path("<str:key>/delete", views.delete, name="delete"),
    path("<str:key>/replay/<int:number>", views.replay, name="replay"),
]
