"""What the fit writes: constants of generations and stacks, the left-out runs, and the table of
what predictions cannot tell."""

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from fit.cases import Case
from fit.constants import CHIP_KINDS, GENERATIONS, OTHERS, STACK_KINDS, VENDORS
from fit.explain import Explained
from fit.hierarchy import Hierarchy
from fit.ranges import Held
from fit.resolution import (
    compiled_looks,
    published_looks,
    write_resolution,
)
from fit.worth import Worth, worth_table
from shardwise.boundary import write_text
from shardwise.evidence.training.runs import PublishedRun
from shardwise.evidence.training.unseen import UnseenPrediction, read_unseen
from shardwise.hardware.catalogue import GENERATIONS as GENERATION_FILES
from shardwise.roofline import stack_names
from shardwise.roofline.resolution import DATA as RESOLUTION

ROOT = Path(__file__).parents[2]
STACKS = ROOT / "src" / "shardwise" / "roofline" / "data" / "stacks.toml"
PAGE = ROOT / "docs" / "lab" / "fit.md"
WORTH = ROOT / "docs" / "lab" / "worth.json"
"""What each term and constant is worth, as far as `scripts/fit_worth.py` has looked."""
COMPILED = ("compiled.json", "compiled_drawn.json")
"""Tables of our own trainer's plans as compiled, in docs/lab/."""
MADE = "# Made by scripts/fit_efficiency.py on {date}; docs/lab/fit.md says how."


def write_unseen(path: Path, found: Iterable[UnseenPrediction]) -> None:
    """Write a table, one line per run."""
    names = [f.name for f in fields(UnseenPrediction)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for one in found:
        writer.writerow([_cell(getattr(one, name)) for name in names])
    write_text(path, out.getvalue())
    read_unseen.cache_clear()


def _cell(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write_constants(
    found: Mapping[str, Explained], hierarchy: Hierarchy, columns: Mapping[str, float], date: str
) -> None:
    """A file per generation, one for the chips that no published run uses, and the stacks'."""
    for generation in GENERATIONS:
        text = generation_toml(generation, found, date)
        (GENERATION_FILES / f"{generation}.toml").write_text(text, encoding="utf-8")
    text = others_toml(hierarchy, columns, date)
    (GENERATION_FILES / f"{OTHERS}.toml").write_text(text, encoding="utf-8")
    STACKS.write_text(stacks_toml(found, date), encoding="utf-8")


def generation_toml(generation: str, found: Mapping[str, Explained], date: str) -> str:
    """The constants of one generation."""
    own = {c: e for c in CHIP_KINDS if (e := found.get(f"{generation}.{c}")) is not None}
    entries = [
        _entry(constant, e.value, e.source, e.basis, e.prior.value) for constant, e in own.items()
    ]
    return "\n".join([MADE.format(date=date), *entries]) + "\n"


def others_toml(hierarchy: Hierarchy, columns: Mapping[str, float], date: str) -> str:
    """What is expected of chips that no published run uses: by vendor, and of any other."""
    lines = [MADE.format(date=date)]
    of_all = f"expected of any chip, from the {len(GENERATIONS)} generations of docs/lab/fit.md"
    lines += _expected(hierarchy, columns, "", of_all)
    for vendor in dict.fromkeys(VENDORS.values()):
        known = sum(v == vendor for v in VENDORS.values())
        source = f"expected of a chip of {vendor}, from its {known} generations of docs/lab/fit.md"
        lines += ["", f"[vendors.{vendor}]", *_expected(hierarchy, columns, vendor, source)]
    return "\n".join(lines) + "\n"


def _expected(
    hierarchy: Hierarchy, columns: Mapping[str, float], vendor: str, source: str
) -> list[str]:
    return [
        _entry(constant, hierarchy.expected(vendor, constant, columns), source, "prior")
        for constant in CHIP_KINDS
    ]


def stacks_toml(found: Mapping[str, Explained], date: str) -> str:
    """One table per software stack."""
    lines = [MADE.format(date=date)]
    for stack in stack_names():
        lines += ["", f"[{stack}]"]
        for constant in STACK_KINDS:
            e = found[f"{stack}.{constant}"]
            lines.append(_entry(constant, e.value, e.source, e.basis))
    return "\n".join(lines) + "\n"


def _entry(name: str, value: float, source: str, basis: str, prior: float | None = None) -> str:
    before = "" if prior is None else f"prior = {prior:.3g}, "
    said = f'source = {json.dumps(source)}, basis = "{basis}"'
    return f"{name} = {{ value = {value:.3g}, {before}{said} }}"


def unseen_runs(
    cases: Sequence[Case],
    fitted: np.ndarray,
    left: np.ndarray,
    baseline: np.ndarray,
    ranges: Sequence[Held],
) -> list[UnseenPrediction]:
    """Every run as it was predicted; the logs are of predicted over measured."""
    found = []
    for i, (case, held) in enumerate(zip(cases, ranges, strict=True)):
        measured = case.run.measured_seconds
        predicted = measured * float(np.exp(left[i]))
        low, high = held.range_.interval(predicted)
        found.append(
            UnseenPrediction(
                fingerprint=case.run.fingerprint,
                predicted=predicted,
                fitted=measured * float(np.exp(fitted[i])),
                constant_mfu=measured * float(np.exp(baseline[i])),
                low=low,
                high=high,
                why="; ".join(held.range_.why),
            )
        )
    return found


def write_what_is_told(runs: Iterable[PublishedRun], date: str) -> None:
    """The table of `roofline/resolution.py`, of published runs as predicted without their group and
    of our own trainer's plans as compiled."""
    looks = published_looks(runs, read_unseen())
    for name in COMPILED:
        text = (ROOT / "docs" / "lab" / name).read_text(encoding="utf-8")
        looks += compiled_looks(json.loads(text)["rows"])
    public = sum(look.public for look in looks)
    of = f"{public} published runs without their group, {len(looks) - public} compiled plans"
    source = (
        f"scripts/fit_efficiency.py on {date}: {of} of docs/lab/{' and docs/lab/'.join(COMPILED)}"
    )
    write_resolution(RESOLUTION, looks, source)


def kept_worths(values: Mapping[str, float], runs: Iterable[PublishedRun]) -> tuple[Worth, ...]:
    """The rows of `WORTH`, as long as these constants and runs are those that it is of."""
    of, _, rows = _held_worths()
    return rows if of == stamp(values, runs) else ()


def told_worths(values: Mapping[str, float], runs: Iterable[PublishedRun]) -> str:
    """The table of `WORTH`; where it is of other constants or runs, that is said first."""
    of, date, rows = _held_worths()
    if not rows or of == stamp(values, runs):
        return worth_table(rows)
    return f"Of the constants of {date}, before those below.\n\n{worth_table(rows)}"


def _held_worths() -> tuple[str, str, tuple[Worth, ...]]:
    """What `WORTH` is of, its date and its rows; none where there is no such file."""
    if not WORTH.exists():
        return "", "", ()
    held = json.loads(WORTH.read_text(encoding="utf-8"))
    return held["of"], held["date"], tuple(worth_from(row) for row in held["rows"])


def worth_from(row: Mapping[str, Any]) -> Worth:
    """A row of the file."""
    return Worth(**{**row, "judged": tuple(row["judged"]) if row.get("judged") else None})


def write_worths(
    head: Mapping[str, Any],
    values: Mapping[str, float],
    runs: Iterable[PublishedRun],
    rows: Iterable[Worth],
) -> None:
    """Write `WORTH`."""
    held = {**head, "of": stamp(values, runs), "rows": [asdict(row) for row in rows]}
    write_text(WORTH, json.dumps(held, indent=1) + "\n")


def stamp(values: Mapping[str, float], runs: Iterable[PublishedRun]) -> str:
    """Twelve digits that stand for constants and runs."""
    of = json.dumps([sorted(values.items()), sorted(run.fingerprint for run in runs)])
    return hashlib.sha256(of.encode()).hexdigest()[:12]
