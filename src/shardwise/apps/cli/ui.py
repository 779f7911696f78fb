"""`shardwise ui`: the page on this machine."""

import webbrowser

import click

from shardwise.apps.cli.command import command, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.parts import needed_for


@command("ui")
def ui(_: Outputs) -> None:
    """A page with every view: rooflines, sharding, plans, simulators, the book.

    It listens on this machine alone and needs no network.
    """
    with needed_for("the page"):
        from shardwise.apps.page.run import PageRequest, listener, serve_page
    asked = request_of(PageRequest)
    made = listener("127.0.0.1", asked.port)

    def ready(url: str) -> None:
        click.echo(f"the page is at {url} until Ctrl-C", err=True)
        if asked.opens:
            webbrowser.open(url)

    serve_page(made, ready)
