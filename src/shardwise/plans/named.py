"""Plans of published runs, by name, which `audit:NAME` means wherever a plan file may stand.

The files lie in `data/audits`: one plan each, with its chapter and its source in its first lines,
and a config.json beside it where the zoo lacks the model. A plan file anywhere may name such a
neighbour. What the runs measured is in `measured.toml` there.
"""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shardwise.boundary import is_file, read_toml
from shardwise.errors import check_known
from shardwise.models.zoo import split_family, with_family, zoo_names

DATA = Path(__file__).parent / "data" / "audits"
PREFIX = "audit:"
CHAPTER = "chapter: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a published run measured: as its source prints it (`published`), in seconds a step where
    they follow from that (`note`), and as the MFU that the source prints, of `mfu_dtype`'s peak."""

    published: str
    source: str
    note: str
    step_seconds: float | None = None
    mfu: float | None = None
    mfu_dtype: str = "bf16"


def audit_names() -> tuple[str, ...]:
    """Names that `audit:NAME` takes, sorted."""
    return tuple(sorted(path.stem for path in DATA.glob("*.yaml")))


def audit_about(name: str) -> str:
    """What a shipped plan is and where its choices were published: its first lines."""
    about = " ".join(line for line in _head(name) if not line.startswith(CHAPTER))
    measured = _measured().get(name)
    return f"{about} Measured: {measured.published}." if measured else about


def audit_measured(plan: object) -> Measured | None:
    """What the run behind a plan measured, where that is `audit:NAME` or its file; None of any
    other plan, and of a run that published nothing."""
    path = plan_path(str(plan)) if isinstance(plan, str | Path) else Path()
    return _measured().get(path.stem) if path.parent == DATA else None


@cache
def _measured() -> dict[str, Measured]:
    table = read_toml(DATA / "measured.toml", "the table of measured runs")
    return {name: Measured(**row) for name, row in table.items()}


def audit_chapter(name: str) -> str:
    """The chapter of the book whose rules a shipped plan is held against: its line `chapter:`."""
    return next(line for line in _head(name) if line.startswith(CHAPTER)).removeprefix(CHAPTER)


def _head(name: str) -> list[str]:
    """The comments of its file."""
    lines = (DATA / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("#").strip() for line in lines if line.startswith("#")]


def plan_path(text: str) -> Path:
    """The file that `audit:NAME` or a path means; BadRequest lists the names for a typo."""
    if not text.startswith(PREFIX):
        return Path(text)
    name = text.removeprefix(PREFIX)
    check_known("audited plan", name, audit_names(), "`shardwise book list` shows all")
    return DATA / f"{name}.yaml"


def from_folder(model: str, folder: Path) -> str:
    """A model as a plan's file in a folder names it: a path that exists seen from there, else what
    it says (a name of the zoo, or a path seen from where the program runs). The family behind its
    '#' stays."""
    word, family = split_family(model)
    beside = folder / word
    if Path(word).is_absolute() or word in zoo_names() or not _is_model(beside):
        return model
    return str(with_family(beside, family))


def file_from_folder(named: str, folder: Path) -> str:
    """A file that a plan's file in a folder names: seen from there, unless it is only seen from
    where the program runs."""
    beside = folder / named
    return named if not is_file(beside) and is_file(Path(named)) else str(beside)


def to_folder(model: str, folder: Path) -> str:
    """A model as a plan's file in a folder should name it: a path seen from there."""
    word, family = split_family(model)
    if Path(word).is_absolute() or word in zoo_names() or not _is_model(Path(word)):
        return model
    return str(with_family(os.path.relpath(word, folder), family))


def _is_model(path: Path) -> bool:
    return is_file(path) or is_file(path / "config.json")
