"""docs/lab/serving_loop.md: its commands exist, and its figures keep the bound of the loop."""

import re
import shlex
from pathlib import Path

import click
import pytest

from shardwise.apps.cli import cli

PAGE = (Path(__file__).parents[1] / "docs" / "lab" / "serving_loop.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ shardwise (.*?)(?: &)?$", PAGE, re.MULTILINE)
WITHIN = 0.15


def counters(name):
    return [float(n) for n in re.findall(rf"^shardwise:{name}\{{.*\}} (.*)$", PAGE, re.MULTILINE)]


def test_the_loop_is_closed():
    """Plan, serve, bench, calibrate, plan, serve, bench: in this order."""
    verbs = [shlex.split(command)[0] for command in COMMANDS]
    once = ["calibrate", "plan", "serve", "bench", "calibrate", "plan", "serve", "bench"]
    assert verbs == once


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one(command):
    words, found = shlex.split(command), cli
    context = click.Context(cli)
    while isinstance(found, click.Group):
        found = found.get_command(context, words.pop(0))
        context = click.Context(found, parent=context)
    found.parse_args(context, words)


def test_the_steps_of_the_second_load_are_predicted():
    measured, predicted = counters("step_seconds_total"), counters("predicted_step_seconds_total")
    assert len(measured) == len(predicted) == 2
    assert predicted[0] / measured[0] < 1 - WITHIN, "there was nothing to learn"
    assert abs(predicted[1] / measured[1] - 1) <= WITHIN
