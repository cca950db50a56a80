"""`repot completion`."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    For bash: repot completion bash > ~/.local/share/bash-completion/completions/repot
    """
    from click.shell_completion import get_completion_class

    from repot.cli.main import main

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(main, {}, "repot", "_REPOT_COMPLETE").source())
