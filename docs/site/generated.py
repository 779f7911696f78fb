"""Pages that are lists: made when the site is built, and not committed (`.gitignore` names them).

`python docs/site/generated.py` writes them all. A row is the page's name in docs/ and the script
or module whose `page()` gives its text.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
SCRIPTS = {
    "findings": "findings",
    "glossary": "glossary",
    "options": "options",
    "rules": "catalogue",
    "systems": "systems",
}
"""The script in scripts/, or the module of this folder, that makes each page."""


def found() -> None:
    """Let the scripts that make pages be imported, in each process."""
    sys.path[:0] = [str(DOCS.parent / "scripts"), str(DOCS / "site")]


def text(name: str) -> str:
    """The text of a generated page."""
    found()
    return import_module(SCRIPTS[name]).page()


def write(name: str) -> None:
    """Write a page."""
    (DOCS / f"{name}.md").write_text(text(name), encoding="utf-8")


def main() -> None:
    """Write every page in two processes, which share the commands of the longest, the systems."""
    found()
    with ProcessPoolExecutor(2, initializer=found) as pool:
        others = [pool.submit(write, name) for name in SCRIPTS if name != "systems"]
        page = import_module("systems").page(partial(pool.map, chunksize=4))
        (DOCS / "systems.md").write_text(page, encoding="utf-8")
        for one in others:
            one.result()


if __name__ == "__main__":
    main()
