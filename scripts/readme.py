"""Run every console example of the README and of docs/examples.md and write its output below it.

`python scripts/readme.py` rewrites both, and the pictures that their examples plot under docs/img;
`examples` and `run` are what the test compares with. Search times differ from run to run, so they
are written as `TIME`.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "site"))
import console  # noqa: E402  (found by the line above)

PAGES = (ROOT / "README.md", ROOT / "docs" / "examples.md")
SEARCH_TIME = re.compile(r"(?<=, in )[\d.,]+ (?:µs|ms|s)(?=\n|$)")
BLOCK = re.compile(r"```console\n\$ (?P<command>.+)\n(?P<output>(?:.*\n)*?)```\n")


def examples(text: str) -> list[tuple[str, str]]:
    """(command, output) of every console block."""
    return [(m["command"], m["output"]) for m in BLOCK.finditer(text)]


def run(command: str, folder: Path = ROOT) -> str:
    """What a command prints on stdout when run in a folder, with search times masked."""
    assert command.startswith("shardwise "), command
    return SEARCH_TIME.sub("TIME", console.run(command, folder))


def rewritten(text: str) -> str:
    """The text with every console block's output made anew."""
    return BLOCK.sub(lambda m: f"```console\n$ {m['command']}\n{run(m['command'])}```\n", text)


if __name__ == "__main__":
    for page in PAGES:
        text = rewritten(page.read_text(encoding="utf-8"))
        page.write_text(text, encoding="utf-8")
        print(f"wrote {page.relative_to(ROOT)}: {len(examples(text))} examples")
    sys.exit(0)
