"""Memberships in the admin site, to look at: roles are given at the page, which writes the audit."""

from __future__ import annotations

from django.contrib import admin

from tangram_web.accounts.models import Membership
from tangram_web.lib.admin import ReadOnlyAdmin


@admin.register(Membership)
class MembershipAdmin(ReadOnlyAdmin):
    """Who is what where."""

    list_display = ("user", "project", "role", "since")
    list_filter = ("project", "role")
