"""What cells of the pages call to show something: commands, tables, pictures, book numbers."""

import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import console
from IPython.display import HTML, Image, Markdown, display

import shardwise as sw
from shardwise.book import book_answer, entry, rule
from shardwise.book.questions import agrees


def shell(command: str, code: int = 0, notes: bool = False) -> None:
    """Run a command as in a terminal and show it with what it prints; `notes` are what it says on
    stderr."""
    _console(command, console.run(command, code=code, notes=notes))


class Background:
    """A command that goes on while the cells below run, until `stop`."""

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
            return subprocess.Popen(words, env=console.by_name(), stdout=log, stderr=log)

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
    """Every number of a chapter, worked out now, beside what the book prints.

    Raises RuntimeError for one that is not what was worked out independently of these rules.
    """
    rows = []
    for listed in sw.book_list(chapter=chapter).table():
        if listed["kind"] == "number" and (not only or listed["id"].startswith(only)):
            rows.append(_exercise(sw.book_show(listed["id"]).result))
    table(rows, ["id", "what is asked", "computed here", "book", ""])


def errata(chapter: str | int, edition: str = "latest") -> None:
    """Where the book's number is not what its own rules give, recomputed."""
    found = sw.book_errata(chapter=chapter, edition=edition).table()
    rows = [
        [f"`{r['id']}`", number(r["printed"]), number(r["computed"]), r["unit"], r["note"]]
        for r in found
    ]
    if rows:
        table(rows, ["id", "printed", "computed", "unit", "why"])
    else:
        display(Markdown("None among the numbers of this chapter that were worked out."))


def steps(entry_id: str, **inputs: Any) -> None:
    """The steps of an answer: each rule with its formula, what it took and what it gave."""
    found = book_answer(entry_id, set=inputs)
    rows = [
        [w.step.name, f"`{w.step.rule}`", rule(w.step.rule).formula, _values(w.value)]
        for w in found.steps
    ]
    table(rows, ["step", "rule", "formula", "gives"])


def number(value: Any) -> str:
    """A number in six digits, thousands with commas where it is whole and short enough."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e7:
        return f"{int(value):,}"
    return f"{value:.6g}"


def _console(command: str, output: str) -> None:
    display(Markdown(f"````console\n$ {command}\n{output}````"))


def _exercise(result: Mapping[str, Any]) -> list[str]:
    known, units = entry(result["id"]), result["unit"]
    if not agrees(result["answer"], known.correct, known.tolerance, known.abs_tol):
        raise RuntimeError(f"{known.id} is {result['answer']}, and should be {known.correct}")
    latest, first = result["book"]["latest"], result["book"]["first"]
    book = _values(latest, units) if latest is not None else "prints none"
    if first != latest:
        book += f"; first edition {_values(first, units)}"
    verdict = {True: "agrees", False: "**differs**", None: ""}[result["agrees"]]
    if result["erratum"]:
        verdict = "**erratum**"
    about = f"{verdict}: {result['note']}" if result["note"] and verdict else verdict
    about = about or result["note"]
    return [f"`{result['id']}`", result["asks"], _values(result["answer"], units), book, about]


def _values(value: Any, unit: str | Sequence[str] = "") -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {_values(item)}" for name, item in value.items())
    values = list(value) if isinstance(value, list | tuple) else [value]
    units = [unit] * len(values) if isinstance(unit, str) else list(unit)
    units += units[-1:] * (len(values) - len(units))
    one = len(set(units)) == 1
    said = [
        f"{number(v)}" if one else f"{number(v)} {u}" for v, u in zip(values, units, strict=False)
    ]
    return "; ".join(said) + (f" {units[0]}" if one and units[0] else "")


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
