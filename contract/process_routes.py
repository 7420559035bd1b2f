"""Routes of the programs that run in environments."""

from __future__ import annotations

import msgspec

from contract.route import API_PREFIX, PROJECT, Parameter, Route
from domain.ports.processes import ProgramFacts
from domain.principals import Scope

_PROCESSES = f"{API_PREFIX}/trajectories/{{id}}/processes"
#: Signals that end a program.
END_SIGNALS = ("SIGKILL", "SIGTERM")


class ProcessList(msgspec.Struct):
    """The programs of a trajectory's environment; none while it does not run."""

    processes: list[ProgramFacts]


PROCESSES = (
    Route(
        method="GET",
        path=_PROCESSES,
        operation="processes_list",
        summary="The programs that run in an environment, with the action or session that started each",
        scope=Scope.READ,
        parameters=(PROJECT,),
        responses={200: ProcessList},
        errors=(404, 410),
    ),
    Route(
        method="DELETE",
        path=f"{_PROCESSES}/{{pid}}",
        operation="processes_end",
        summary="End a program of an environment by SIGKILL, or send it SIGTERM",
        scope=Scope.SUBMIT,
        parameters=(
            PROJECT,
            Parameter(
                "signal",
                "SIGKILL, the default, or SIGTERM, which a program may handle.",
                {"type": "string", "enum": list(END_SIGNALS)},
            ),
        ),
        responses={200: ProgramFacts},
        errors=(404, 409, 410, 422),
    ),
)
