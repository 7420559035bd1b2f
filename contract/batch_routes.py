"""Routes of batches: what ranks of a trainer pull of finished rollouts."""

from __future__ import annotations

from contract.batch_requests import BatchCreation
from contract.batch_views import BatchList, BatchManifest
from contract.route import API_PREFIX, PROJECT, TEXT, Binary, Parameter, Route
from domain.principals import Scope

#: Rows as `rollout.tokens.row_frames` states them.
ROWS_TYPE = "application/vnd.tangram.rows"
MAX_LISTED_BATCHES = 500
_BATCH = f"{API_PREFIX}/batches/{{id}}"
_RANK = {"type": "integer", "minimum": 0}

BATCHES = (
    Route(
        method="POST",
        path=f"{API_PREFIX}/batches",
        operation="batches_create",
        summary="Make a batch of finished rollouts for the ranks of a trainer: a manifest, whose rows each rank pulls",
        scope=Scope.SUBMIT,
        body=BatchCreation,
        responses={201: BatchManifest},
        errors=(404, 409, 413, 422),
    ),
    Route(
        method="GET",
        path=f"{API_PREFIX}/batches",
        operation="batches_list",
        summary="Batches, newest first, with what each rank has pulled; expired ones for a day",
        scope=Scope.READ,
        parameters=(
            PROJECT,
            Parameter(
                "limit",
                "Most batches; 100 without it.",
                {"type": "integer", "minimum": 1, "maximum": MAX_LISTED_BATCHES},
            ),
        ),
        responses={200: BatchList},
        errors=(404, 422),
    ),
    Route(
        method="GET",
        path=_BATCH,
        operation="batches_retrieve",
        summary="Manifest of a batch, with the workers that live now",
        scope=Scope.SUBMIT,
        parameters=(
            PROJECT,
            Parameter("rank", "Only this rank's token is shown.", _RANK),
        ),
        responses={200: BatchManifest},
        errors=(404, 410, 422),
    ),
    Route(
        method="GET",
        path=f"{_BATCH}/rows",
        operation="batches_rows",
        summary="Rows of a rank, where no rollout worker can be reached; the token is that of the batch and rank",
        scope=None,
        own_token="rank",
        parameters=(
            Parameter("rank", "The rank that owns them.", _RANK),
            Parameter(
                "rows", "Numbers and ranges, as `0-63,70`; without it all of the rank.", TEXT
            ),
        ),
        responses={200: Binary(ROWS_TYPE, "Frames of rows, and an end.")},
        errors=(401, 403, 404, 410, 422),
        streams=True,
    ),
)
