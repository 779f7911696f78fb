"""Commands run in this process, for the tests of the command line."""

import contextlib
import io
import json
from functools import cache

import pytest

from shardwise.apps.cli import main

SERVED = ("--model", "llama-3-8b", "--on", "h100:1", "--input", "512", "--output", "32")
SERVED += ("--tpot", "40ms", "--rate", "20")
"""A serving request of many tests, which is searched once (`tests/searched.py`)."""


def run(capsys, *args) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command; a traceback fails the test by itself."""
    with pytest.raises(SystemExit) as done:
        main([str(a) for a in args])
    out, err = capsys.readouterr()
    return int(done.value.code or 0), out, err


def document(capsys, *args) -> dict:
    """The JSON document, which is all of stdout."""
    code, out, err = run(capsys, *args, "--json")
    assert code == 0, err
    assert err == ""
    return json.loads(out)


def over(words, *more) -> tuple[str, ...]:
    """The words of a command, and more of them, whose options replace those of the same name."""
    again = {word for word in more if str(word).startswith("--")}
    starts = [i for i, word in enumerate(words) if word in again]
    return (*(w for i, w in enumerate(words) if not {i, i - 1} & set(starts)), *more)


@cache
def answered(*args) -> tuple[str, str]:
    """Stdout and stderr of a command that many tests read; it runs once, and
    writes its files once."""
    out, err = io.StringIO(), io.StringIO()
    outputs = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with outputs[0], outputs[1], pytest.raises(SystemExit) as done:
        main([str(a) for a in args])
    assert not done.value.code, err.getvalue()
    return out.getvalue(), err.getvalue()


def answer(*args) -> dict:
    """The JSON document of a command that many tests read; see `answered`."""
    out, err = answered(*args, "--json")
    assert err == ""
    return json.loads(out)


def flat(out: str) -> str:
    """The words of an answer, whatever their lines; commands as a shell joins them."""
    return " ".join(out.replace("\\\n", "").split())


def refused(capsys, args, code=2) -> str:
    """The message of a refusal: one line on stderr, nothing on stdout."""
    got, out, err = run(capsys, *args)
    assert got == code, err
    assert out == ""
    assert err.startswith("error: ")
    assert "Traceback" not in err
    return err.removeprefix("error: ").rstrip("\n")
