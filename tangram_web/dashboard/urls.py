"""Addresses of the pages."""

from __future__ import annotations

from django.urls import URLPattern, path

from tangram_web.dashboard import audit, exports, histories, insight, maps, past, traces, views

app_name = "dashboard"

urlpatterns: list[URLPattern] = [
    path("", views.overview, name="overview"),
    path("enter/", views.enter, name="enter"),
    path("history.json", past.history, name="history"),
    path("export/<str:name>.<str:form>", exports.table, name="export"),
    path("trace/", traces.viewer, name="trace"),
    path("trace/window.json", traces.of_window, name="trace-window"),
    path("trace/actions/<str:action_id>.json", traces.of_action, name="trace-action"),
    path("trace/trajectories/<path:key>.json", traces.of_trajectory, name="trace-trajectory"),
    path("queues/", insight.queues, name="queues"),
    path("cpu/", maps.cpu, name="cpu"),
    path("gpu/", maps.gpu, name="gpu"),
    path("gpu/past.json", maps.gpu_past, name="gpu-past"),
    path("apis/", maps.apis, name="apis"),
    path("decisions/", insight.decisions, name="decisions"),
    path("audit/", audit.entries, name="audit"),
    path("workers/", insight.workers, name="workers"),
    path("trajectories/", histories.trajectories, name="trajectories"),
    path("trajectories/<path:key>/", histories.trajectory, name="trajectory"),
    path("tasks/", histories.tasks, name="tasks"),
    path("tasks/<path:key>/", histories.task, name="task"),
    path("actions/", views.actions, name="actions"),
    path("actions/<str:action_id>/", views.action, name="action"),
]
