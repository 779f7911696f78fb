"""The progress line: drawn on a terminal for what takes longer than two seconds."""

import io

from shardwise.apps.cli import output


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_nothing_is_drawn_at_first_and_then_at_most_every_tenth(monkeypatch):
    now, terminal = [0.0], Terminal()
    monkeypatch.setattr(output.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(output.sys, "stderr", terminal)
    show = output.progress_line("searching")
    assert show is not None
    for seconds in (0.5, 1.9, 2.5, 2.55, 2.7):
        now[0] = seconds
        show(0, 2)
    now[0] = 2.75
    show(2, 2)
    line = "\rsearching: {} of 2 parts of the slice, {} s"
    assert terminal.getvalue() == line.format(0, 2) + line.format(0, 3) + line.format(2, 3) + "\n"


def test_without_a_terminal_nobody_is_told(monkeypatch):
    monkeypatch.setattr(output.sys, "stderr", io.StringIO())
    assert output.progress_line("searching") is None


def test_quiet_draws_nothing(monkeypatch):
    monkeypatch.setattr(output.sys, "stderr", Terminal())
    monkeypatch.setattr(output, "wanted", lambda much: much == "quiet")
    assert output.progress_line("searching") is None
    with output.stage_line() as watch:
        assert watch is None
