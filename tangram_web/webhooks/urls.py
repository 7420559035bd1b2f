"""URLs of the webhooks."""

from __future__ import annotations

from django.urls import URLPattern, path

from tangram_web.webhooks import views

app_name = "webhooks"

urlpatterns: list[URLPattern] = [
    path("", views.endpoints, name="list"),
    path("<slug:key>/", views.endpoint, name="one"),
    path("<slug:key>/rotate", views.rotate, name="rotate"),
    path("<slug:key>/ping", views.ping, name="ping"),
    path("<slug:key>/delete", views.delete, name="delete"),
    path("<slug:key>/replay/<int:number>", views.replay, name="replay"),
]
