"""Options that commands share: their help, and how they become settings."""

import click
import pytest
from click.testing import CliRunner

from shardwise.apps.cli import main
from shardwise.apps.cli.options import hardware_options, request_of
from shardwise.commands.base.inputs import HardwareWords

NONE = {"prices": (), "provider": None, "spot": False}


def command(**choices):
    @click.command()
    @hardware_options(**choices)
    def read(**options):
        click.echo(repr(request_of(HardwareWords, {**NONE, **options}).hardware))

    return read


@pytest.mark.parametrize("choices", [{}, {"constants": None}, {"price": False}])
def test_every_option_has_help_and_says_whether_it_repeats(choices):
    for option in command(**choices).params:
        assert option.help
        repeats = "may be repeated" in option.help
        assert repeats == (option.multiple and option.name != "prices"), option.name


def test_a_command_without_dollars_offers_no_price():
    read = command(constants=None, price=False)
    assert "--price" not in CliRunner().invoke(read, ["--help"]).output
    assert CliRunner().invoke(read, ["--price", "v5e=1"]).exit_code == 2
    assert "prices=()" in CliRunner().invoke(read, ["--constants", "book"]).output
    assert "prices=('v5e=1',)" in CliRunner().invoke(command(), ["--price", "v5e=1"]).output


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--price", "v5e=2"), "is for chip 'v5e', but the chip here is 'h100'"),
        (("--set", "chip.network.link_oneway=9e9"), "give network.chip_oneway in bytes/s"),
        (("--set", "chip.network.links_per_chip=9"), "give network.chip_oneway in bytes/s"),
        (("--set", "chip.network.levels=1"), "changed in a --hw file, not by --set"),
    ],
)
def test_a_choice_that_cannot_take_effect_is_refused(capsys, args, said):
    plan = ("plan", "serve", "--model", "llama-3-8b", "--input", "512", "--output", "8")
    for command in ((*plan, "--on", "h100:8"), ("hw", "show", "h100")):
        with pytest.raises(SystemExit) as stop:
            main([*command, *args])
        assert stop.value.code == 2
        assert said in capsys.readouterr().err
