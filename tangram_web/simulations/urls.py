"""Addresses of the simulations."""

from __future__ import annotations

from django.urls import URLPattern, path

from tangram_web.simulations import views

app_name = "simulations"

urlpatterns: list[URLPattern] = [
    path("", views.simulations, name="list"),
    path("<slug:key>/", views.simulation, name="one"),
    path("<slug:key>/result.json", views.result, name="result"),
    path("<slug:key>/cancel", views.cancel, name="cancel"),
    path("<slug:key>/delete", views.delete, name="delete"),
]
