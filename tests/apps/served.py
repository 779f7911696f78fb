"""`plan serve` asked as a person types it: a document that several tests read, and a page."""

import contextlib
import io
import json
from functools import cache

import pytest
from tests.apps.commands import SERVED

from shardwise.apps.cli import main
from shardwise.apps.cli.plan_serve import serve
from shardwise.commands.plan_serve.serve import ServePlanRequest

SMALL, RATE = SERVED[:8], SERVED[8:]


def run(*args):
    serve.main(args=list(args), standalone_mode=False)


def found(*args):
    """The document of a request that several tests read."""
    return _found(ServePlanRequest.answer, *args)


@cache
def _found(answer, *args):
    """It hangs on who answers, which fixtures change."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run(*args, "--json")
    return json.loads(out.getvalue())


def said(capsys, *args):
    """Standard output and error of a command, and its exit code."""
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    out, err = capsys.readouterr()
    return out, err, stop.value.code or 0
