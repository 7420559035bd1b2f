"""Entry links: ``tangram up`` prints one that signs its reader in without a password."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from urllib.parse import urlencode

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.core import signing
from django.urls import reverse
from django.utils import timezone

MAX_AGE_SECONDS: Final = 600
_SALT: Final = "tangram.entry"


def entry_link(user: AbstractBaseUser) -> str:
    """Return the path that logs ``user`` in: once, within ten minutes.

    The link holds the time of the user's last login: any later login invalidates it, and nothing
    needs to be stored.
    """
    token = signing.dumps([user.pk, _stamp(user.last_login)], salt=_SALT)
    return f"{reverse('dashboard:enter')}?{urlencode({'token': token})}"


def claim_entry(token: str) -> AbstractBaseUser | None:
    """Return the account of a link and use the link up; None when it is not valid any more."""
    try:
        pk, stamp = signing.loads(token, salt=_SALT, max_age=MAX_AGE_SECONDS)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    user: AbstractBaseUser | None = (
        get_user_model()._default_manager.filter(pk=pk, is_active=True).first()
    )
    if user is None or _stamp(user.last_login) != stamp:
        return None
    # Of two browsers at the same time, the one whose update finds the old login is signed in.
    unclaimed = get_user_model()._default_manager.filter(pk=pk, last_login=user.last_login)
    return user if unclaimed.update(last_login=timezone.now()) == 1 else None


def _stamp(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat()
