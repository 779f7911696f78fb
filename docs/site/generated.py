"""Pages that are lists: made when the site is built, and not committed (`.gitignore` names them).

`python docs/site/generated.py` writes them all. A row is the page's name in docs/ and the script
or module whose `page()` gives its text.
"""

import sys
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


def text(name: str) -> str:
    """The text of a generated page."""
    sys.path[:0] = [str(DOCS.parent / "scripts"), str(DOCS / "site")]
    return import_module(SCRIPTS[name]).page()


def main() -> None:
    """Write every page."""
    for name in SCRIPTS:
        (DOCS / f"{name}.md").write_text(text(name), encoding="utf-8")


if __name__ == "__main__":
    main()
