"""Addresses of the pages."""

from __future__ import annotations

from django.urls import URLPattern, path

from tangram_web.dashboard import views

app_name = "dashboard"

urlpatterns: list[URLPattern] = [
    path("", views.overview, name="overview"),
    path("enter/", views.enter, name="enter"),
    path("actions/", views.actions, name="actions"),
    path("actions/<str:action_id>/", views.action, name="action"),
]
