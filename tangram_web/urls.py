"""URLs: the pages of `site_map` at the root, the API below ``/api/v1/``."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerView

from tangram_web.compare.api import CompareView
from tangram_web.dashboard.gpu_api import Gpus
from tangram_web.dashboard.pages import url_patterns
from tangram_web.doctor.api import Checks, ClusterChecks
from tangram_web.explorer.api import SavedViewApi, SavedViewsApi
from tangram_web.metrics.views import MetricsView
from tangram_web.problems.api import Problems
from tangram_web.reports.api import TaskReportApi
from tangram_web.site_map import PAGES

admin.site.site_header = "Tangram"
admin.site.site_title = "Tangram"
admin.site.index_title = "Rows and configuration"

urlpatterns: list[URLPattern | URLResolver] = [
    path("login/", LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("admin/", admin.site.urls),
    path("metrics", MetricsView.as_view(), name="metrics"),
    path("api/v1/openapi.json", SpectacularJSONAPIView.as_view(), name="openapi"),
    path(
        "api/docs/",
        SpectacularSwaggerView.as_view(url_name="openapi", template_name="dashboard/api_docs.html"),
        name="api-docs",
    ),
    path("api/v1/checks", Checks.as_view()),
    path("api/v1/cluster/checks", ClusterChecks.as_view()),
    path("api/v1/problems", Problems.as_view()),
    path("api/v1/gpus", Gpus.as_view()),
    path("api/v1/views", SavedViewsApi.as_view()),
    path("api/v1/views/<path:view>", SavedViewApi.as_view()),
    path("api/v1/compare", CompareView.as_view(), name="compare-api"),
    path("api/v1/tasks/<str:task>/report", TaskReportApi.as_view()),
    path("api/v1/", include("tangram_web.records.api.urls")),
    path("api/v1/", include("tangram_web.pools.api.urls")),
    path("api/v1/", include("tangram_web.audit.api.urls")),
    *url_patterns(PAGES),
]
