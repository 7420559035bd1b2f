"""The command `tangram`: every verb is a thin client of the HTTP API.

Standard output is data, standard error is talk. Exit codes: 0 ok, 1 failure, 2 usage, 3 not found,
4 conflict, 5 unreachable.
"""

from __future__ import annotations

import click

import tangram_client
from tangram_client.cli.actions import cancel, describe, get, submit
from tangram_client.cli.attach import shell_
from tangram_client.cli.batch import batch
from tangram_client.cli.calibrate import calibrate
from tangram_client.cli.completion import completion
from tangram_client.cli.config import apply, diff, export
from tangram_client.cli.copying import cp, ls
from tangram_client.cli.doctor import doctor
from tangram_client.cli.door import door
from tangram_client.cli.environments import fork, park, renew, restore, snapshot
from tangram_client.cli.fleet import fleet
from tangram_client.cli.forwarding import forward
from tangram_client.cli.image import image
from tangram_client.cli.listing import list_
from tangram_client.cli.logs import logs
from tangram_client.cli.operate import node, service, task
from tangram_client.cli.processes import ps
from tangram_client.cli.replay import replay
from tangram_client.cli.report import report
from tangram_client.cli.rerun import rerun
from tangram_client.cli.rollout import backend, rollout
from tangram_client.cli.selector import selector
from tangram_client.cli.shell import Verbs, connected
from tangram_client.cli.status import status
from tangram_client.cli.token import token
from tangram_client.cli.top import top
from tangram_client.cli.view import view
from tangram_client.cli.watch import watch


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tangram_client.__version__, prog_name="tangram")
@connected
def verbs() -> None:
    """Submit actions to Tangram, and watch them.

    Where: --url and --token, else TANGRAM_URL and TANGRAM_TOKEN, else what `tangram up` left in
    TANGRAM_HOME/client.json. stdout is data, stderr is talk; NO_COLOR is honoured.
    Exit codes: 0 ok, 1 failure, 2 usage, 3 not found, 4 conflict, 5 unreachable.
    """


for _verb in (
    submit,
    get,
    describe,
    logs,
    cancel,
    rerun,
    list_,
    cp,
    ls,
    forward,
    door,
    fork,
    image,
    ps,
    shell_,
    snapshot,
    restore,
    park,
    renew,
    task,
    node,
    service,
    rollout,
    backend,
    batch,
    fleet,
    selector,
    token,
    view,
    watch,
    replay,
    calibrate,
    report,
    status,
    top,
    diff,
    apply,
    export,
    doctor,
    completion,
):
    verbs.add_command(_verb)


def main() -> None:
    """Run the command line."""
    verbs(prog_name="tangram")
