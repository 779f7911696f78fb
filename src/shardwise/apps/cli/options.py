"""Options that several commands share. Nothing heavy is imported here, for the sake of --help."""

import click


def hardware_options(constants: str | None = "vendor"):
    """--constants, --hw, --set and --price of commands that price; None lets the plan say."""

    def decorate(command):
        for option in (
            click.option("--price", "prices", multiple=True, metavar="CHIP=USD"),
            click.option("--set", "sets", multiple=True, metavar="PATH=VALUE"),
            click.option("--hw", "hw_files", multiple=True, type=click.Path(), help="Chip file."),
            click.option(
                "--constants",
                default=constants,
                show_default=constants is not None,
                metavar="vendor|book",
                help="Whose numbers for the chips.",
            ),
        ):
            command = option(command)
        return command

    return decorate
