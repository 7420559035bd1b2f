"""URLs of the configuration."""

from __future__ import annotations

from django.urls import include, path, re_path
from rest_framework.routers import SimpleRouter

from tangram_web.pools.api import configuration
from tangram_web.pools.api.joining import JoinTokenViewSet, NodeJoin, NodeRevokeControl
from tangram_web.pools.api.tokens import TokenViewSet
from tangram_web.pools.api.views import (
    NAME_IN_PATH,
    FleetViewSet,
    NodeDrainControl,
    NodeForgetControl,
    NodeGroups,
    NodeResumeControl,
    PoolViewSet,
    ProjectViewSet,
    ResourceViewSet,
)

router = SimpleRouter(trailing_slash=False)
router.register("pools", PoolViewSet, basename="pool")
router.register("projects", ProjectViewSet, basename="project")
router.register("resources", ResourceViewSet, basename="resource")
router.register("fleets", FleetViewSet, basename="fleet")
router.register("tokens", TokenViewSet, basename="token")
router.register("node-tokens", JoinTokenViewSet, basename="node-token")

urlpatterns = [
    path("config", configuration.Export.as_view()),
    path("config/diff", configuration.Diff.as_view()),
    path("config/apply", configuration.Apply.as_view()),
    path("config/schema", configuration.Schema.as_view()),
    path("config/revisions", configuration.Revisions.as_view()),
    re_path(r"^config/revisions/(?P<number>\d{1,18})$", configuration.Revision.as_view()),
    re_path(r"^config/revisions/(?P<number>\d{1,18})/rollback$", configuration.RollBack.as_view()),
    path("", include(router.urls)),
    path("node-groups", NodeGroups.as_view()),
    re_path(rf"^nodes/(?P<name>{NAME_IN_PATH})/drain$", NodeDrainControl.as_view()),
    re_path(rf"^nodes/(?P<name>{NAME_IN_PATH})/resume$", NodeResumeControl.as_view()),
    re_path(rf"^nodes/(?P<name>{NAME_IN_PATH})/forget$", NodeForgetControl.as_view()),
    re_path(rf"^nodes/(?P<name>{NAME_IN_PATH})/join$", NodeJoin.as_view()),
    re_path(rf"^nodes/(?P<name>{NAME_IN_PATH})/revoke$", NodeRevokeControl.as_view()),
]
