"""Bodies of the requests for batches, with the limits that they are checked against."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from contract.requests import Label, Name

#: Rollouts of one batch.
MAX_BATCH_ROLLOUTS = 4096
#: Segments of one batch.
MAX_BATCH_ROWS = 16_384
MAX_RANKS = 4096
#: Groups that one request names.
MAX_GROUPS = 1000
MAX_BATCH_SECONDS = 86_400
DEFAULT_BATCH_SECONDS = 3600


class BatchCreation(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of ``POST /batches``: rollouts by their ids or their groups, and which rank of a trainer owns which."""

    #: Name of a group, the samples of one instance, or of several. Instead of `rollouts`.
    group: Label | Annotated[list[Label], Meta(min_length=1, max_length=MAX_GROUPS)] | None = None
    rollouts: Annotated[list[str], Meta(min_length=1, max_length=MAX_BATCH_ROLLOUTS)] | None = None
    #: Of the groups, where names of groups are not unique.
    task: Name | None = None
    project: Name | None = None
    #: ``{"ranks": N}``: balanced by tokens; with ``owners``, rollout → rank: as stated; or a layout of the dispatcher.
    layout: dict[str, Any]
    #: Rollouts that cannot train are left out, instead of refusing the request.
    leave_out: bool = False
    #: The tokens of the ranks, and so the batch, expire after this time.
    expires_seconds: Annotated[int, Meta(ge=1, le=MAX_BATCH_SECONDS)] = DEFAULT_BATCH_SECONDS
