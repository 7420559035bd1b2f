"""Memberships in the admin site, read only: the members page changes them and writes the audit."""

from __future__ import annotations

from django.contrib import admin

from tangram_web.accounts.models import Membership
from tangram_web.lib.admin import ReadOnlyAdmin


@admin.register(Membership)
class MembershipAdmin(ReadOnlyAdmin):
    """Accounts with their roles."""

    list_display = ("user", "project", "role", "since")
    list_filter = ("project", "role")
