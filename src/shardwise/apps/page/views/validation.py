"""Validation: every published run, predicted by a fit that left its group out, beside measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import State, choice
from shardwise.apps.page.figures import FigureAxis, FigureData, Mark, TableData, facts
from shardwise.apps.page.view import Drawn, PageView
from shardwise.evidence.serving.runs import PUBLISHED_SERVING, read_serving
from shardwise.evidence.training.table import PUBLISHED, read_table
from shardwise.verbs.answer import Answer

TRAINING, SERVING = "training: ", "serving: "
EVERY = "every run"
MANY = 20
"""Runs of a source that is priced only once the choice has come to rest."""


def _counts() -> dict[str, int]:
    """Runs of every source, fewest first, and then of all."""
    found: dict[str, int] = {}
    trained = [row["source"] for row in read_table(PUBLISHED).rows]
    served = [run.source for run in read_serving(PUBLISHED_SERVING).runs]
    for kind, sources in ((TRAINING, trained), (SERVING, served)):
        names = sorted(set(sources), key=lambda name: (sources.count(name), name))
        found |= {f"{kind}{name}": sources.count(name) for name in names}
        found[f"{kind}{EVERY}"] = len(sources)
    return found


RUNS: Mapping[str, int] = _counts()
COLUMNS = ("id", "source", "chip", "model", "predicted", "measured", "error", "bound_by")
SERVED = ("id", "source", "chip", "model", "predicted", "measured", "error", "engine")


def _validate(state: State) -> list[VerbCall]:
    kind, _, source = state["runs"].partition(": ")
    keywords = {"serving": True if kind == "serving" else None}
    keywords["source"] = None if source == EVERY else source
    return [VerbCall(verb="validate", command="validate", keywords=keywords)]


def _calls(state: State) -> list[VerbCall]:
    return _validate(state) if RUNS[state["runs"]] < MANY else []


def _many(state: State) -> list[VerbCall]:
    return [] if RUNS[state["runs"]] < MANY else _validate(state)


def _draw(state: State, answers: Sequence[Answer]) -> Drawn:
    if not answers:
        return Drawn(lines=[f"{RUNS[state['runs']]:,} runs are being priced."], **_SAID)
    found = answers[0].result
    served = state["runs"].startswith(SERVING)
    names = ("n", "median_abs_error", "p90_abs_error")
    figures = {f"{name}, left out": found["summary"][name] for name in names}
    if not served:
        figures |= {f"{name}, in sample": found["summary"]["in_sample"][name] for name in names}
    columns = SERVED if served else COLUMNS
    rows = [[one.get(name) for name in columns] for one in found["rows"]]
    return Drawn(
        figures=[_plane(found["rows"], state["by"], served)],
        tables=[
            facts("Errors", figures),
            TableData(
                title="Runs, each predicted by constants fitted without its group",
                header=columns,
                rows=rows,
                units={"predicted": "s", "measured": "s"},
            ),
            *(_folds(found["left_out"]) if served else _unpriced(found["left_out"])),
        ],
        **_SAID,
    )


_SAID: Any = {
    "formula": "error = predicted / measured - 1",
    "source": "docs/fit.md, docs/fit_serving.md; each run's citation: `shardwise validate --csv`",
}


def _folds(found: Mapping[str, Any]) -> list[TableData]:
    """Of servers the errors with each kind of group left out of the fit."""
    names = ("n", "median_abs_error", "p90_abs_error")
    rows = [
        [fold, which.upper(), *(one[which][name] for name in names)]
        for fold, one in found.items()
        for which in ("tpot", "ttft")
    ]
    return [TableData(title="Left out of the fit", header=("fold", "of", *names), rows=rows)]


def _unpriced(rows: Sequence[Mapping[str, Any]]) -> list[TableData]:
    shown = [[one["id"], one["reason"]] for one in rows]
    header = ("id", "why")
    return [TableData(title="Runs that cannot be priced", header=header, rows=shown)] * bool(rows)


def _plane(rows: Sequence[Mapping[str, Any]], by: str, served: bool) -> FigureData:
    marks = []
    for name in dict.fromkeys(str(one[by]) for one in rows):
        own = [one for one in rows if str(one[by]) == name]
        x, y = ([one[which] for one in own] for which in ("measured", "predicted"))
        marks.append(Mark(kind="dot", label=name, x=x, y=y, text=[one["id"] for one in own]))
    measured = sorted(one["measured"] for one in rows)
    ends = [measured[0], measured[-1]]
    marks.append(Mark(kind="line", label="predicted = measured", x=ends, y=ends, dashed=True))
    what = "Time per output token" if served else "Step time"
    return FigureData(
        id="plane",
        title=f"{what}, predicted against measured",
        x=FigureAxis(label="measured", unit="s", log=True),
        y=FigureAxis(label="predicted", unit="s", log=True),
        marks=marks,
    )


VIEW = PageView(
    name="validation",
    title="Validation",
    about="Every published run of training and of serving: predicted against measured.",
    controls=(
        choice("runs", "Runs", tuple(RUNS), f"{TRAINING}torchtitan-h100-2024-12"),
        choice("by", "Coloured by", ("chip", "source", "model"), "model"),
    ),
    calls=_calls,
    slow=_many,
    draw=_draw,
)
