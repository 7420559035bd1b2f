"""History: the points of a range of the past, as charts read them."""

from __future__ import annotations

from time import time

import msgspec
import redis
from django.http import HttpRequest, HttpResponse

from tangram_web.dashboard.file_responses import json_response
from tangram_web.dashboard.history_query import marks_of, not_kept, recalled_of, span_of
from tangram_web.dashboard.project_choice import project_of
from tangram_web.live.access import Sight


def history(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Answer with the points of a range, its totals, and the revisions that began in it.

    The range is of one project where the address names one, or the reader may not see all.
    """
    now, project = time(), project_of(sight, request.GET)
    if project is None:
        return json_response({"detail": "no such project"}, 404)
    span = span_of(request.GET, now)
    if isinstance(span, str):
        return json_response({"detail": span}, 400)
    first, last = span
    try:
        recalled = recalled_of(first, last, now, project)
        note = not_kept(project)
    except redis.RedisError as error:
        return json_response({"detail": f"redis does not answer: {error}"}, 503)
    # Revisions are of the whole configuration, which members of some projects may not see.
    marks = marks_of(first, last) if sight.everything else []
    return json_response(msgspec.structs.asdict(recalled) | {"marks": marks, "note": note})
