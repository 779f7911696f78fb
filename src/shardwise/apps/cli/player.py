"""The page that plays an `Animation`: --html of the book's machines, --animate of `shard`.

`data/player.html` draws what it is given and nothing else: rectangles, arrows and moments. It needs
no network.
"""

import json
from pathlib import Path

from shardwise.book.simulators import Animation, kinds_of
from shardwise.boundary import write_text
from shardwise.boundary.records import plain

PALETTE = (
    *("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#9c755f", "#76b7b2", "#edc948"),
    *("#2f5d8a", "#c06a12", "#3b7d36", "#b83a40", "#86507a", "#6d4c36", "#4d8f8a", "#b8982a"),
)


def write_player(found: Animation, path: Path, option: str) -> None:
    """Write one HTML file with play, step and a slider. Raises BadRequest where that fails."""
    data = {**plain(found), "kinds": kinds_of(found), "palette": PALETTE}
    text = json.dumps(data, allow_nan=False).replace("</", "<\\/")
    page = (Path(__file__).parent / "data" / "player.html").read_text("utf-8")
    write_text(path, page.replace("__DATA__", text), option=option)
