"""`completion`: the script that teaches a shell the verbs and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell_name", metavar="bash|zsh|fish", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, /, shell_name: str) -> None:
    """Print the completion script, as in: eval "$(tangram completion bash)" """
    kind = get_completion_class(shell_name)
    if kind is None:
        raise click.UsageError(f"no completion for {shell_name}")
    verbs = context.find_root().command
    click.echo(kind(verbs, {}, "tangram", "_TANGRAM_COMPLETE").source())
