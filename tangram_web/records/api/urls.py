"""Addresses of the history."""

from __future__ import annotations

from rest_framework.routers import SimpleRouter

from tangram_web.records.api.views import (
    ActionViewSet,
    NodeViewSet,
    TaskViewSet,
    TrajectoryViewSet,
)

router = SimpleRouter(trailing_slash=False)
router.register("actions", ActionViewSet, basename="action")
router.register("trajectories", TrajectoryViewSet, basename="trajectory")
router.register("tasks", TaskViewSet, basename="task")
router.register("nodes", NodeViewSet, basename="node")

urlpatterns = router.urls
