"""Options that commands share: their help, and how they become settings."""

import click
import pytest
from tests.apps.commands import refused
from tests.apps.test_files import ALL

from shardwise.apps.cli import main
from shardwise.apps.cli.command import request_of
from shardwise.commands.base.inputs import HardwareWords


@pytest.mark.parametrize("command", [("plan", "train"), ("plan", "show"), ("roofline",)])
def test_every_option_of_chips_has_help_and_says_whether_it_repeats(command):
    names = ("constants", "hw_files", "sets", "prices", "provider", "spot")
    for option in ALL[command].params:
        if option.name in names:
            assert option.help
            repeats = "may be repeated" in option.help
            assert repeats == (option.multiple and option.name != "prices"), option.name


def test_a_command_without_dollars_offers_no_price(capsys):
    assert "--price" not in ALL["roofline",].get_help(click.Context(ALL["roofline",]))
    assert "No such option '--price'" in refused(capsys, ["roofline", "--price", "v5e=1"])


def test_options_make_the_request_by_name():
    words = ["v5e", "--constants", "book", "--price", "v5e=1"]
    context = ALL["hw", "show"].make_context("show", words)
    made = request_of(HardwareWords, context.params)
    assert (made.constants, made.prices, made.sets) == ("book", ("v5e=1",), ())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--price", "v5e=2"), "is for chip 'v5e', but the chip here is 'h100'"),
        (("--set", "chip.network.link_oneway=9e9"), "give network.chip_oneway in bytes/s"),
        (("--set", "chip.network.links_per_chip=9"), "give network.chip_oneway in bytes/s"),
        (("--set", "chip.network.levels=1"), "changed in a --hw file only"),
    ],
)
def test_a_choice_that_cannot_take_effect_is_refused(capsys, args, said):
    plan = ("plan", "serve", "--model", "llama-3-8b", "--input", "512", "--output", "8")
    for command in ((*plan, "--on", "h100:8"), ("hw", "show", "h100")):
        with pytest.raises(SystemExit) as stop:
            main([*command, *args])
        assert stop.value.code == 2
        assert said in capsys.readouterr().err
