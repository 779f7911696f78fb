"""A site without a server: the page, and the answer of each state of a grid as a file.

DIR/index.html is the page of `shardwise ui` and says where the grid lies. grid/index.json.gz has
the views and the file of each state, and grid/VIEW/NAME.json.gz what `shardwise ui` answers there
once its search is done, or of a coarse site its quick answer. A run that was stopped goes on where
it stopped.
"""

import gzip
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from shardwise.apps.page.app import BUNDLE
from shardwise.apps.page.controls import state_of
from shardwise.apps.page.grid import GridState, SiteGrid, grid_state
from shardwise.apps.page.view import ViewHeading, ViewLink
from shardwise.apps.page.views import VIEWS
from shardwise.boundary import finite
from shardwise.boundary.outputs import check_folder, write_bytes
from shardwise.boundary.records import plain
from shardwise.errors import BadRequest, ShardwiseError
from shardwise.planner.kept_plans import KeptPlans, plans_kept

FLAG = "--export"
INDEX = "grid/index.json.gz"
PLACE = '<div id="root">'
POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:"
SOURCES = (".py", ".toml", ".json", ".csv", ".js")
"""Endings of the files that answers are made of."""
ALONE = 20
"""States up to which other processes, each of which imports for two seconds, are not worth it."""
PART = 10
"""States that a process is given at once: a model on each of ten chips (ours)."""
TICK = 1.0
"""Seconds between two looks at which states are there."""
SiteProgress = Callable[[int, int, float | None], None]
"""Hears of states that are there, of how many, and of the seconds left, where they are known."""
_PLANS = KeptPlans()
"""Of the searches and runs of this process: states of one model have many in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteWritten:
    """What a site came to."""

    states: int
    refused: int
    """States whose answer is an error, such as no plan that fits."""
    size: int
    """Bytes of all files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteIndex:
    """The views of a site; of each the names of its files by the states' keys."""

    made_by: str
    coarse: bool
    views: Sequence[ViewHeading]
    states: Mapping[str, Mapping[str, str]]


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_site(folder: Path, coarse: bool = False) -> None:
    """Raise BadRequest for a folder that cannot hold the site, or holds something else."""
    if not (folder / INDEX).exists():
        check_folder(folder, FLAG)
        return
    if _read(folder / INDEX).get("made_by") != _made_by():
        raise BadRequest(
            f"{FLAG} '{folder}' holds a site of another version of shardwise; name another folder, "
            "or delete that one"
        )
    if _index(folder).coarse != coarse:
        has, other = ("coarse", "leave out") if coarse else ("full", "give")
        raise BadRequest(
            f"{FLAG} '{folder}' holds a site whose answers are not {has}; {other} --coarse as "
            "before, or name another folder"
        )


def seconds_left(folder: Path, grid: SiteGrid, states: Sequence[GridState]) -> float:
    """What those that are not there yet take, about."""
    missing = [one for one in states if not _file(folder, one).exists()]
    return grid.seconds_of(missing) / max(1, min(cores(), len(missing) // ALONE))


def write_site(
    folder: Path, grid: SiteGrid, states: Sequence[GridState], told: SiteProgress | None
) -> SiteWritten:
    """The page with the answers of these states, and of those that their answers lead to."""
    for name in grid.views:
        (folder / "grid" / name).mkdir(parents=True, exist_ok=True)
    _write_index(folder, grid, [one for one in states if _file(folder, one).exists()])
    root = f'{PLACE[:-1]} data-grid="{INDEX}">'
    meta = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n</head>'
    html = (BUNDLE / "index.html").read_text("utf-8").replace(PLACE, root)
    write_bytes(folder / "index.html", html.replace("</head>", meta).encode(), option=FLAG)
    for name in ("app.js", "app.css"):
        write_bytes(folder / name, (BUNDLE / name).read_bytes(), option=FLAG)
    _write_all(folder, grid, list(states), told)
    led_to = [one for one in _led_to(folder, states) if one.view in grid.views]
    everything = list(dict.fromkeys([*states, *led_to]))
    _write_all(folder, grid, everything, told)
    files = [one for one in folder.rglob("*") if one.is_file()]
    refused = sum("error" in _read(_file(folder, one)) for one in everything)
    size = sum(one.stat().st_size for one in files)
    return SiteWritten(states=len(everything), refused=refused, size=size)


def _write_all(
    folder: Path, grid: SiteGrid, states: list[GridState], told: SiteProgress | None
) -> None:
    """The states whose files are not there yet; then, and when it is stopped, the index."""
    missing = own = [one for one in states if not _file(folder, one).exists()]
    whole, began = grid.seconds_of(own), time.monotonic()
    try:
        for _ in _made(own, folder, grid):
            missing = [one for one in missing if not _file(folder, one).exists()]
            if told is not None:
                ahead, took = grid.seconds_of(missing), time.monotonic() - began
                known = len(missing) < len(own)
                left = took * ahead / (whole - ahead) if known else None
                told(len(states) - len(missing), len(states), left)
    finally:
        _write_index(folder, grid, [one for one in states if _file(folder, one).exists()])


def _made(states: Sequence[GridState], folder: Path, grid: SiteGrid) -> Iterator[None]:
    """Writes the states, and those of other views that they lead to, a beat at a time; on all cores
    where they are many."""
    workers = min(cores(), len(states) // ALONE)
    if workers < 2:
        for part in _parts(states):
            yield from _make(part, folder, grid)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting, running = _parts(states), set[Future[None]]()
        try:
            while True:
                for part in waiting:
                    running.add(pool.submit(_make_all, part, folder, grid))
                    if len(running) > workers:
                        break
                if not running:
                    return
                done, running = wait(running, TICK, return_when=FIRST_COMPLETED)
                for one in done:
                    one.result()
                yield
        except BaseException:  # a state may take a minute, and its file is written whole or not
            for worker in active_children():
                worker.terminate()
            raise


def _parts(states: Sequence[GridState]) -> Iterator[Sequence[GridState]]:
    """States of one view and model that follow each other, for one process; a few at a time."""
    for _, own in groupby(states, lambda one: (one.view, dict(one.words).get("model"))):
        left = list(own)
        while left:
            part, left = left[:PART], left[PART:]
            yield part


def _make_all(states: Sequence[GridState], folder: Path, grid: SiteGrid) -> None:
    for _ in _make(states, folder, grid):
        pass


def _make(states: Sequence[GridState], folder: Path, grid: SiteGrid) -> Iterator[None]:
    """Writes each state, and at once those that it leads to and that are not there: they have
    searches and runs in common."""
    for one in states:
        data = answer_file(one, grid.coarse)
        write_bytes(_file(folder, one), data, option=FLAG)
        yield
        for to in _links(data):
            if to.view != one.view and to.view in grid.views and not _file(folder, to).exists():
                write_bytes(_file(folder, to), answer_file(to, grid.coarse), option=FLAG)


def answer_file(state: GridState, coarse: bool = False) -> bytes:
    """What `shardwise ui` answers for the state with a search's result, or a quick one, packed."""
    view = VIEWS[state.view]
    try:
        with plans_kept(_PLANS):
            document = view.settled(state_of(view.state, dict(state.words)), coarse)
        said = finite(plain(document))[0]
    except ShardwiseError as error:
        said = {"error": view.refusal(error)}
    return _packed(said)


def _led_to(folder: Path, states: Sequence[GridState]) -> Iterator[GridState]:
    """The states of the links of their answers."""
    for one in states:
        yield from _links(_file(folder, one).read_bytes())


def _links(data: bytes) -> Iterator[GridState]:
    for link in _unpacked(data).get("links", ()):
        to = ViewLink(**link)
        yield grid_state(VIEWS[to.view], to.state)


def _write_index(folder: Path, grid: SiteGrid, states: Sequence[GridState]) -> None:
    """Views and files; of an earlier run the states that are there stay."""
    old = _index(folder).states if (folder / INDEX).exists() else {}
    names = [name for name in VIEWS if name in old or name in grid.views]
    found = {name: dict(old.get(name, {})) for name in names}
    for one in states:
        found[one.view][one.key] = _name(one)
    heads = [VIEWS[name].heading() for name in found]
    index = SiteIndex(made_by=_made_by(), coarse=grid.coarse, views=heads, states=found)
    write_bytes(folder / INDEX, _packed(plain(index)), option=FLAG)


def _index(folder: Path) -> SiteIndex:
    return SiteIndex(**_read(folder / INDEX))


def _file(folder: Path, state: GridState) -> Path:
    return folder / "grid" / state.view / f"{_name(state)}.json.gz"


def _name(state: GridState) -> str:
    return hashlib.sha256(state.key.encode()).hexdigest()[:12]


def _packed(document: Any) -> bytes:
    return gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0)


def _read(path: Path) -> Any:
    return _unpacked(path.read_bytes())


def _unpacked(data: bytes) -> Any:
    return json.loads(gzip.decompress(data))


def _made_by() -> str:
    """A digest of the package: answers of another one are not mixed with these."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(one for one in root.rglob("*") if one.suffix in SOURCES):
        digest.update(f"{path.relative_to(root)}".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
