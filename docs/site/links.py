"""Links of a page to files of the repository that are no pages: as code, for the site has no such
files."""

import re
from pathlib import Path

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")


def to_repository(app, docname: str, source: list[str]) -> None:
    """Of a link to a local file that the site does not build, keep its text and the file's path."""
    folder = (Path(app.srcdir) / docname).parent

    def kept(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        if "://" in target or built(app, folder / target):
            return found[0]
        path = (folder / target).resolve().relative_to(Path(app.srcdir).resolve().parent)
        return text if text.strip("`") == str(path) else f"{text} (`{path}`)"

    source[0] = LINK.sub(kept, source[0])


def built(app, path: Path) -> bool:
    """Whether a file is a page of the site, or a picture or record inside its folder."""
    inside = Path(app.srcdir).resolve() in path.resolve().parents
    return inside and path.exists()
