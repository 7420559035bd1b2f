"""Addresses of the configuration's pages."""

from __future__ import annotations

from django.urls import URLPattern, path

from tangram_web.configuration import views

app_name = "configuration"

urlpatterns: list[URLPattern] = [
    path("", views.overview, name="overview"),
    path("edit/", views.edit, name="edit"),
    path("review/", views.review, name="review"),
    path("try/", views.try_out, name="try"),
    path("revisions/", views.revisions, name="revisions"),
    path("revisions/<int:number>/", views.revision, name="revision"),
]
