"""`shardwise ui`: the page on this machine, or as a site of files."""

import webbrowser
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardwise.apps.cli.command import command, ended_at_once, on_command_line, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import progress_line, tell
from shardwise.apps.cli.parts import needed_for
from shardwise.errors import BadRequest
from shardwise.units import many, sig

if TYPE_CHECKING:
    from shardwise.apps.page.run import PageRequest

OF_A_SERVER = {"port": "--port", "opens": "--open", "at": "--at"}
OF_A_SITE = {"models": "--model", "chips": "--on", "views": "--view", "coarse": "--coarse"}


@command("ui")
def ui(_: Outputs) -> None:
    """A page with every view: rooflines, sharding, plans, simulators, the book.

    It listens on this machine alone and needs no network. --export writes the page as files with a
    grid of answers, for any static host; the same command continues where it stopped.
    """
    with needed_for("the page"):
        from shardwise.apps.page.run import PageRequest
    asked = request_of(PageRequest)
    if asked.export is None:
        _refuse(OF_A_SITE, "is of a site that is written; give --export DIR too, or leave it out")
        _serve(asked)
    else:
        _refuse(OF_A_SERVER, "is of a page that is served; leave out it, or --export")
        _write(asked, Path(asked.export))


def _refuse(flags: dict[str, str], rule: str) -> None:
    """Raise BadRequest for an option that cannot take effect."""
    for name, flag in flags.items():
        if on_command_line(name):
            raise BadRequest(f"{flag} {rule}")


def _serve(asked: "PageRequest") -> None:
    from shardwise.apps.page.run import listener, serve_page  # uvicorn, which --help does without

    at = asked.state()
    made = listener("127.0.0.1", asked.port)

    def ready(url: str) -> None:
        click.echo(f"the page is at {url}{at} until Ctrl-C", err=True)
        if asked.opens:
            webbrowser.open(url + at)

    serve_page(made, ready)


def _write(asked: "PageRequest", folder: Path) -> None:
    from shardwise.apps.page.site import check_site, cores, seconds_left, write_site

    check_site(folder, asked.coarse)
    grid = asked.grid()
    states = grid.states()
    minutes = ceil(seconds_left(folder, grid, states) / 60)
    tell(
        f"{many(len(states), 'state')} of {many(len(grid.views), 'view')}: about "
        f"{many(minutes, 'minute')} on {many(cores(), 'core')}; the same command goes on where "
        "this one is stopped"
    )
    with ended_at_once():
        done = write_site(folder, grid, states, progress_line("writing", "states"))
    click.echo(
        f"{folder}: {many(done.states, 'state')} in {sig(done.size / 1e6)} MB, of which "
        f"{done.refused:,} say why there is no answer\n"
        f"next: python -m http.server --directory {folder}"
    )
