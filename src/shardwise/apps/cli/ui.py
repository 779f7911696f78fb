"""`shardwise ui`: the page on this machine."""

import webbrowser
from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.numbers import Whole
from shardwise.apps.cli.parts import needed_for


@click.command(cls=AnswerCommand)
@click.option("--port", type=Whole(most=65535), default=8765, show_default=True)
@click.option("--open", "opens", is_flag=True, help="Also open it in the browser.")
def ui(**options: Any) -> None:
    """A page with every view: rooflines, sharding, plans, simulators, the book.

    It listens on this machine alone and needs no network.
    """
    with needed_for("the page"):
        from shardwise.apps.page.run import listener, serve_page
    made = listener("127.0.0.1", options["port"])

    def ready(url: str) -> None:
        click.echo(f"the page is at {url} until Ctrl-C", err=True)
        if options["opens"]:
            webbrowser.open(url)

    serve_page(made, ready)
