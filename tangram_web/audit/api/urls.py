"""URLs of the audit."""

from __future__ import annotations

from rest_framework.routers import SimpleRouter

from tangram_web.audit.api.views import AuditViewSet

router = SimpleRouter(trailing_slash=False)
router.register("audit", AuditViewSet, basename="audit")

urlpatterns = router.urls
