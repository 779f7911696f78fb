"""--draw, --plot and --animate of `shardwise shard`: what to show, rendered by `shard_views`."""

from collections.abc import Sequence

import click

from shardwise.apps.cli.outputs import Outputs
from shardwise.apps.cli.shard_views import animate, animate_terminal, draw, plot
from shardwise.commands.shard.expression import Sharding, first_movement
from shardwise.sharding import Layout, Mesh, Sizes


def picture_arrays(out: Outputs, arrays: Sequence[Layout], sizes: Sizes, mesh: Mesh) -> None:
    """Draw every array; plot the only one."""
    if out.draw:
        for layout in dict.fromkeys(arrays):
            click.echo(f"\n{draw(layout, sizes, mesh)}")
    if out.plot_path is not None:
        plot(arrays[0], sizes, mesh, out.plot_path)


def picture_movement(out: Outputs, answer: Sharding) -> None:
    """Replay the first collective of the best strategy on the slice's links, with small blocks."""
    path = out.animate_path
    if path is None:
        return
    trace = first_movement(answer)
    if str(path) == "-":
        for frame in animate_terminal(trace):
            click.echo(f"\n{frame}")
    else:
        animate(trace, path)
