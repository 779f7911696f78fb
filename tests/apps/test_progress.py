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


def test_a_log_has_a_line_every_fifteen_seconds(monkeypatch):
    now, log = [0.0], io.StringIO()
    monkeypatch.setattr(output.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(output.sys, "stderr", log)
    monkeypatch.setattr(output.sys, "__stderr__", log)
    show = output.progress_line("simulating", "runs")
    assert show is not None
    for seconds in (2.5, 14.9, 15.5, 29.0, 31.0):
        now[0] = seconds
        show(int(seconds), 0)
    now[0] = 32.0
    show(40, 40, 0.0)
    assert log.getvalue() == "simulating: 15 runs, 16 s\nsimulating: 31 runs, 31 s\n"


def test_stderr_that_a_caller_keeps_has_no_lines(monkeypatch):
    monkeypatch.setattr(output.sys, "stderr", io.StringIO())
    assert output.progress_line("simulating", "runs") is None


def test_quiet_draws_nothing(monkeypatch):
    monkeypatch.setattr(output.sys, "stderr", Terminal())
    monkeypatch.setattr(output, "wanted", lambda much: much == "quiet")
    assert output.progress_line("searching") is None
    with output.stage_line() as watch:
        assert watch is None
