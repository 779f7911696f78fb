"""What cells of the pages call to show something: commands, tables, pictures, book numbers."""

import subprocess
import time
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import console
import working
from IPython.display import HTML, Image, Markdown, display

import shardwise as sw
from shardwise.book import book_answer, entry

MOVE = (
    "const own = this.closest('.moved'), all = own.querySelectorAll('img');"
    "all.forEach((one, place) => { one.hidden = place != this.value });"
    "own.querySelector('output').textContent = all[this.value].title.split(' = ')[1]"
)
"""What a slider does in the page: shows one picture of several."""


def shell(command: str, code: int = 0, notes: bool = False) -> None:
    """Run a command as in a terminal and show it with what it prints; `notes` are what it says on
    stderr."""
    _console(command, console.run(command, code=code, notes=notes))


HASTE = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
}
"""With these a server of a page compiles sooner, and its steps take longer: a page that shows times
says so."""


class Background:
    """A command that goes on while the cells below run, until `stop`; it compiles in haste."""

    def __init__(self, command: str, until: str, seconds: float = 90) -> None:
        self.log = Path("background.log")
        end = time.monotonic() + seconds
        self.process = self._started(command)
        while until not in (said := self.log.read_text(encoding="utf-8")):
            ended = self.process.poll() is not None
            if time.monotonic() > end or (ended and "already in use" not in said):
                raise RuntimeError(f"{command}: {said}")
            if ended:  # the server of a build that was stopped has its port for a while
                self.process = self._started(command)
            time.sleep(0.1)
        _console(command, "")

    def _started(self, command: str) -> subprocess.Popen:
        words = ["bash", "-c", f"exec {command}"]
        with self.log.open("w", encoding="utf-8") as log:
            around = console.by_name() | HASTE
            return subprocess.Popen(words, env=around, stdout=log, stderr=log)

    def stop(self) -> None:
        """Ctrl-C, and wait for its end."""
        self.process.terminate()
        self.process.wait(timeout=60)


def picture(path: str) -> None:
    """A picture that a command above has drawn."""
    display(Image(path))


def figure(command: str, path: str) -> None:
    """A command that draws, its first lines, and the picture."""
    shell(f"{command} --plot {path} --brief")
    picture(path)


def machine(name: str, height: int, **settings: Any) -> None:
    """One of the book's machines to play, in the page itself, and the command that writes it."""
    sets = "".join(f" --set {key}={value}" for key, value in settings.items())
    command, path = f"shardwise book figure {name}{sets} --html {name}.html", Path(f"{name}.html")
    console.run(f"{command} --brief")
    page = escape(path.read_text(encoding="utf-8"), quote=True)
    path.unlink()
    style = f"width:100%;height:{height}px;border:1px solid #8884;border-radius:6px"
    frame = f'<iframe title="{name}, to play" style="{style}" srcdoc="{page}"></iframe>'
    display(HTML(f"<div>{frame}</div>"))  # IPython warns of what begins with a frame
    display(Markdown(f"`{command}`"))


def table(rows: Iterable[Sequence[Any]], header: Sequence[str]) -> None:
    """Rows as a table."""
    lines = (header, ["---"] * len(header), *rows)
    display(Markdown("\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)))


def exercises(chapter: str | int, *only: str) -> None:
    """Every number of a chapter, worked out now, each folded under its question."""
    rows = [
        working.exercise(listed)
        for listed in sw.book_list(chapter=chapter).table()
        if listed["kind"] == "number" and (not only or listed["id"].startswith(only))
    ]
    display(HTML(f'<div class="exercises">{"".join(rows)}</div>'))


def errata(chapter: str | int, edition: str = "latest") -> None:
    """Where the book's number is not what its own rules give, recomputed."""
    found = sw.book_errata(chapter=chapter, edition=edition).table()
    rows = [
        [
            f"`{r['id']}`",
            working.number(r["printed"]),
            working.number(r["computed"]),
            r["unit"],
            r["note"],
        ]
        for r in found
    ]
    if rows:
        table(rows, ["id", "printed", "computed", "unit", "why"])
    else:
        display(Markdown("None among the numbers of this chapter that were worked out."))


def steps(entry_id: str, **inputs: Any) -> None:
    """The steps of an answer: each rule with its formula, what it took and what it gave."""
    known = entry(entry_id)
    display(Markdown(known.asks))
    display(HTML(working.given(known) + working.worked(book_answer(entry_id, set=inputs))))


def moved(command: str, name: str, values: Sequence[Any]) -> None:
    """A figure that a slider changes: the command's picture for each value of one setting."""
    pictures = []
    for place, value in enumerate(values):
        console.run(f"{command} --set {name}={value} --plot moved.png --brief")
        data = b64encode(Path("moved.png").read_bytes()).decode()
        said = f'alt="{escape(command)}" title="{name} = {working.number(value)}"'
        hidden = " hidden" if place else ""
        pictures.append(f'<img{hidden} {said} src="data:image/png;base64,{data}">')
    Path("moved.png").unlink()
    slider = f'<input type="range" min="0" max="{len(values) - 1}" value="0" oninput="{MOVE}">'
    label = f"<label>{name} {slider} <output>{working.number(values[0])}</output></label>"
    display(HTML(f'<div class="moved">{label}{"".join(pictures)}</div>'))
    display(Markdown(f"`{command} --set {name}={values[0]} --plot {name}.png`"))


def _console(command: str, output: str) -> None:
    display(Markdown(f"````console\n$ {command}\n{output}````"))


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
