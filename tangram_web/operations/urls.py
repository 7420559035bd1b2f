"""Addresses of the verbs."""

from __future__ import annotations

from django.urls import URLPattern, path

from tangram_web.operations import views

app_name = "operations"

urlpatterns: list[URLPattern] = [
    path("operate/", views.operate, name="operate"),
    path("act/done/<int:entry>/", views.done, name="done"),
    path("act/<str:kind>/<str:name>/", views.verb, name="verb"),
]
