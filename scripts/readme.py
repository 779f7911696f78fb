"""Run every console example of the README and of docs/examples.md and write its output below it.

`python scripts/readme.py` rewrites both, and the pictures that their examples plot under docs/img;
`examples` and `run` are what the test compares with. Search times differ from run to run, so they
are written as `TIME`.
"""

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "examples.md")
BLOCK = re.compile(r"```console\n\$ (?P<command>.+)\n(?P<output>(?:.*\n)*?)```\n")
SEARCH_TIME = re.compile(r"(?<=, in )[\d.,]+ (?:µs|ms|s)(?=\n|$)")


def examples(text: str) -> list[tuple[str, str]]:
    """(command, output) of every console block."""
    return [(m["command"], m["output"]) for m in BLOCK.finditer(text)]


def run(command: str, folder: Path = ROOT) -> str:
    """What a command prints on stdout when run in a folder, with search times masked."""
    from shardwise.apps.cli import main

    program, *arguments = shlex.split(command)
    assert program == "shardwise", command
    if "--plot" in arguments:
        arguments.append("--force")  # a picture of an earlier time, which a checkout brings
    out = io.StringIO()
    quiet = contextlib.redirect_stderr(io.StringIO())
    with contextlib.redirect_stdout(out), quiet, contextlib.chdir(folder), own_state():
        try:
            main(arguments)
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"{command} exits with {end.code}") from end
    return SEARCH_TIME.sub("TIME", out.getvalue())


@contextlib.contextmanager
def own_state() -> Iterator[None]:
    """What commands remember of their files goes to a temporary folder, not to the home."""
    before = os.environ.get("XDG_STATE_HOME")
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        try:
            yield
        finally:
            os.environ.pop("XDG_STATE_HOME")
            if before is not None:
                os.environ["XDG_STATE_HOME"] = before


def rewritten(text: str) -> str:
    """The text with every console block's output made anew."""
    return BLOCK.sub(lambda m: f"```console\n$ {m['command']}\n{run(m['command'])}```\n", text)


if __name__ == "__main__":
    for page in PAGES:
        text = rewritten(page.read_text(encoding="utf-8"))
        page.write_text(text, encoding="utf-8")
        print(f"wrote {page.relative_to(ROOT)}: {len(examples(text))} examples")
    sys.exit(0)
