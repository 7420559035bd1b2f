"""Routes of selectors of parallelism, with their bodies."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from contract.route import API_PREFIX, Parameter, Route
from contract.selector_status import DecisionView, SelectorList, SelectorView
from domain.principals import Scope
from domain.selectors import MOST_TOKENS, Parallelism, ParallelismProfile, SelectorStage

_SELECTOR = f"{API_PREFIX}/selectors/{{selector}}"
_Count = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]


class StageLoadRequest(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Body of ``POST /selectors/{selector}/observations``: what one step of a stage had."""

    #: Mean, 95th percentile and longest context of a response, in tokens; 0: not known.
    context: Annotated[float, Meta(ge=1, le=MOST_TOKENS)]
    context_p95: Annotated[float, Meta(ge=0, le=MOST_TOKENS)] = 0.0
    context_longest: Annotated[float, Meta(ge=0, le=MOST_TOKENS)] = 0.0
    #: Responses at once.
    responses: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] = 1
    #: Calls that wait.
    queue: _Count = 0
    #: Tokens that the stage works on; 0: those of all responses.
    tokens: Annotated[float, Meta(ge=0, le=2.0**60)] = 0.0
    stage: SelectorStage = SelectorStage.ROLLOUT
    #: Number of the step; the same step with the same load again changes nothing.
    step: _Count | None = None


class DegreePinRequest(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Body of ``POST /selectors/{selector}/pin``."""

    parallelism: Parallelism
    #: Although it would run out of memory.
    force: bool = False


class ChangedSelector(msgspec.Struct, omit_defaults=True):
    """A selector whose change is accepted."""

    selector: str
    #: Of the request.
    cells: int = 0
    parallelism: Parallelism | None = None


def _number(name: str, text: str, least: int = 0) -> Parameter:
    schema: dict[str, Any] = {"type": "number", "minimum": least, "maximum": MOST_TOKENS}
    return Parameter(name, text, schema)


def _flag(name: str, text: str) -> Parameter:
    return Parameter(name, text, {"type": "boolean"})


SELECTORS = (
    Route(
        method="GET",
        path=f"{API_PREFIX}/selectors",
        operation="selectors_list",
        summary="Selectors of parallelism: what is in force for each stage, and why",
        scope=Scope.READ,
        responses={200: SelectorList},
    ),
    Route(
        method="GET",
        path=_SELECTOR,
        operation="selectors_show",
        summary="A selector with its latest loads and switches",
        scope=Scope.READ,
        responses={200: SelectorView},
        errors=(404,),
    ),
    Route(
        method="GET",
        path=f"{_SELECTOR}/profile",
        operation="selectors_profile",
        summary="The profile in use: its cells and the costs of switches",
        scope=Scope.READ,
        responses={200: ParallelismProfile},
        errors=(404, 409),
    ),
    Route(
        method="PUT",
        path=f"{_SELECTOR}/profile",
        operation="selectors_put_profile",
        summary="Add measured cells to a profile, or replace those of the same place",
        scope=Scope.OPERATE,
        body=ParallelismProfile,
        responses={202: ChangedSelector},
        errors=(404, 413, 422),
    ),
    Route(
        method="GET",
        path=f"{_SELECTOR}/decision",
        operation="selectors_decision",
        summary="The degree of a stage that begins now; it records the load, but for a dry run",
        scope=Scope.SUBMIT,
        parameters=(
            Parameter(
                "stage",
                "`rollout` without it.",
                {"type": "string", "enum": [each.value for each in SelectorStage]},
            ),
            _number("context", "Mean context of a response, in tokens.", 1),
            _number("responses", "Responses at once; 1 without it.", 1),
            _number("longest", "Longest context of a response that is known of."),
            _number("queue", "Calls that wait."),
            _number("tokens", "Tokens that the stage works on; without it those of all responses."),
            _number("step", "Number of the step: the same request again changes nothing."),
            _flag("dry_run", "Record nothing, and change nothing."),
        ),
        responses={200: DecisionView},
        errors=(404, 409, 422),
    ),
    Route(
        method="POST",
        path=f"{_SELECTOR}/observations",
        operation="selectors_observe",
        summary="Report the load of a step: the degree of the next one is chosen from it",
        scope=Scope.SUBMIT,
        body=StageLoadRequest,
        responses={202: ChangedSelector},
        errors=(404, 413, 422),
    ),
    Route(
        method="POST",
        path=f"{_SELECTOR}/pin",
        operation="selectors_pin",
        summary="Use one degree for all stages, unless it would run out of memory",
        scope=Scope.OPERATE,
        body=DegreePinRequest,
        responses={202: ChangedSelector},
        errors=(404, 413, 422),
    ),
    Route(
        method="POST",
        path=f"{_SELECTOR}/unpin",
        operation="selectors_unpin",
        summary="Select the degree by the load again",
        scope=Scope.OPERATE,
        responses={202: ChangedSelector},
        errors=(404,),
    ),
)
