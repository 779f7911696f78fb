"""The page that plays an `Animation`: --html of the book's machines, --animate of `shard`.

The script is that of the page (page/src/player.js), as it was built into `apps/page/bundle`; it
draws what it is given and nothing else. The file needs no network.
"""

import json
import re
from html import escape
from pathlib import Path

from shardwise.book.simulators import Animation, kinds_of
from shardwise.boundary import write_text
from shardwise.boundary.records import plain
from shardwise.units import sig

HERE = Path(__file__).parent
SCRIPT = HERE.parent / "page" / "bundle" / "player.js"


def write_player(found: Animation, path: Path, option: str) -> None:
    """Write one HTML file with play, step, speed and a slider. Raises BadRequest where that
    fails."""
    data = json.dumps({**plain(found), "kinds": kinds_of(found)}, allow_nan=False)
    parts = {
        "__TITLE__": escape(found.title),
        "__SOURCE__": escape(found.source),
        "__READINGS__": "".join(_row(found, name) for name in found.readings),
        "__DATA__": data.replace("</", "<\\/"),
        "__SCRIPT__": SCRIPT.read_text("utf-8"),
    }
    page = (HERE / "data" / "player.html").read_text("utf-8")
    write_text(path, re.sub("__[A-Z]+__", lambda found: parts[found[0]], page), option=option)


def _row(found: Animation, name: str) -> str:
    value = f"{sig(found.readings[name], 6)} {found.units.get(name, '')}"
    return f"<tr><td>{escape(name.replace('_', ' '))}</td><td>{escape(value)}</td></tr>"
