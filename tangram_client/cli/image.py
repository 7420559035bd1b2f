"""`image`: import, copy, list and remove the images of nodes."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import IO

import click

from tangram_client._image_calls import (
    copy_image,
    import_image,
    import_stored,
    list_images,
    remove_image,
)
from tangram_client._sync_objects import pieces, upload_object
from tangram_client.archives import pack_tree
from tangram_client.cli.output import put_data, rows, show
from tangram_client.cli.shell import Shell, connected, pass_shell, say
from tangram_client.models import ImageInfo

_HEADINGS = (
    "NAME",
    "DIGEST",
    "SIZE",
    "ENVIRONMENTS",
    "WARM",
    "LAST USED",
    "NODES",
    "OTHERS PULL IT",
)
_PIECE_BYTES = 1024 * 1024
_nodes = click.option("--node", "nodes", multiple=True, help="May be given several times [all].")


@click.group()
def image() -> None:
    """Manage the root file systems that `environment.image` names under bubblewrap."""


@image.command("import")
@click.argument("name")
@click.argument("source")
@_nodes
@connected
@pass_shell
def import_(shell: Shell, /, name: str, source: str, nodes: tuple[str, ...]) -> None:
    """Store SOURCE on nodes as NAME: a tar of a root file system, of `docker save`, an OCI layout, or a folder.

    - is standard input: docker save swe:1 | tangram image import swe:1 -
    """
    with _opened(source) as archive, shell.client() as client:
        used = upload_object(
            client, archive, {}, lambda sha256: import_stored(name, sha256, nodes), kind="image"
        )
        for stored in used or [client.send(import_image(name, lambda: pieces(archive), nodes))]:
            _report(shell, stored, "stored")


@image.command("copy")
@click.argument("name")
@click.option("--from", "source", required=True, metavar="NODE", help="A node that has it.")
@_nodes
@connected
@pass_shell
def copy(shell: Shell, /, name: str, source: str, nodes: tuple[str, ...]) -> None:
    """Store the image NAME of one node on the others, by way of the object store."""
    with shell.client() as client:
        stored = client.send(copy_image(name, source, nodes))
    _report(shell, stored, "stored")


@image.command("list")
@connected
@pass_shell
def listed(shell: Shell, /) -> None:
    """List the images of nodes, with the environments that are upon them."""
    with shell.client() as client:
        found = client.send(list_images())
    if shell.format in {"json", "yaml"}:
        put_data([asdict(each) for each in found], shell.format)
    elif shell.format == "name":
        for each in found:
            click.echo(each.name)
    else:
        show(rows(_HEADINGS, [_line(each) for each in found]))


@image.command("rm")
@click.argument("name")
@_nodes
@connected
@pass_shell
def remove(shell: Shell, /, name: str, nodes: tuple[str, ...]) -> None:
    """Delete NAME, and its image with the last name. Refused while environments are upon it."""
    with shell.client() as client:
        removed = client.send(remove_image(name, nodes))
    _report(shell, removed, "removed")


def _report(shell: Shell, done: ImageInfo, verb: str) -> None:
    if shell.format in {"json", "yaml"}:
        put_data(asdict(done), shell.format)
    else:
        click.echo(done.digest or done.name)
        say(f"{verb} on {', '.join(done.nodes)}")
    for node, why in done.failed.items():
        say(f"node {node}: {why}")
    if done.failed:
        sys.exit(1)


def _line(image: ImageInfo) -> tuple[str, ...]:
    size = f"{image.size_bytes / 2**20:.0f} MiB"
    warm = image.warm
    kept = f"{warm['kept']} of {warm['wanted']}" if warm.get("wanted") else ""
    return (
        image.name, image.digest[:12], size, str(image.environments), kept, image.used_at or "",
        ", ".join(image.nodes), "yes" if image.stored else "",
    )  # fmt: skip


def _opened(source: str) -> IO[bytes]:
    """Open an archive; a folder becomes one, standard input a file that can be sent again."""
    if source != "-" and not Path(source).is_dir():
        try:
            return open(source, "rb")
        except OSError as error:
            raise click.BadParameter(f"{source}: {error.strerror}", param_hint="SOURCE") from None
    archive = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
    if source == "-":
        shutil.copyfileobj(sys.stdin.buffer, archive, _PIECE_BYTES)
    else:
        pack_tree(Path(source), archive)
    return archive
