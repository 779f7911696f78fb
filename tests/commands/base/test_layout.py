"""Pages: their labelled lines, how they wrap, and what a terminal shows in colour."""

import pytest

from shardwise.apps.cli.output import print_page
from shardwise.commands.base.layout import (
    WIDTH,
    Fact,
    Facts,
    both_ends,
    shares_text,
    tone_of,
    wrapped,
)


def test_facts_align_their_texts():
    facts = Facts([Fact("step", "5.47 s"), Fact("memory", "52.8 of 95.7 GiB", "good")])
    assert str(facts) == "  step    5.47 s\n  memory  52.8 of 95.7 GiB"


def test_long_facts_wrap_below_their_text():
    lines = str(Facts([Fact("why", "word " * 60), Fact("x", "")])).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert [line[:7] for line in lines] == ["  why  ", "       ", "       ", "       ", "  x"]


def test_two_ends_take_two_lines_where_there_is_no_room():
    assert both_ends("  left", "right", 20) == "  left" + " " * 9 + "right"
    assert both_ends("  left", "right" * 4, 20) == "  left\n  " + "right" * 4


def test_a_paragraph_wraps_with_its_indent():
    lines = wrapped("word " * 40, 2, 4).splitlines()
    assert lines[0].startswith("  word")
    assert lines[1].startswith("    word")
    assert max(map(len, lines)) <= WIDTH


def test_small_shares_are_added_up():
    assert (
        shares_text({"a": 98.0, "b": 1.0, "c": 0.3, "d": 0.7}, 0.01)
        == "a 98 %, b 1.0 %, other 1.0 %"
    )
    assert shares_text({"a": 1.0, "b": 0.0}) == "a 100 %"


@pytest.mark.parametrize(("used", "tone"), [(1, "good"), (95, "tight"), (101, "bad")])
def test_a_figure_close_to_its_limit_is_tight(used, tone):
    assert tone_of(used, 100) == tone


@pytest.mark.parametrize(("no_color", "styled"), [(None, True), ("1", False)])
def test_a_terminal_shows_tones_unless_it_wants_none(monkeypatch, no_color, styled):
    said = []
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("click.echo", said.append)
    print_page([Facts([Fact("memory", "99 of 95 GiB", "bad")])])
    assert ("\x1b[" in said[0]) == styled
    assert "99 of 95 GiB" in said[0]


def test_a_pipe_gets_plain_text(capsys):
    print_page([Facts([Fact("memory", "99 of 95 GiB", "bad")])])
    assert capsys.readouterr().out == "  memory  99 of 95 GiB\n"
