"""Validation: every published run, predicted by a fit that left its group out, beside measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import ViewState, choice
from shardwise.apps.page.figures import FigureAxis, FigureData, KeyFigure, Mark, TableData, facts
from shardwise.apps.page.view import Drawn, PageView
from shardwise.commands.base.answer import Answer
from shardwise.commands.tables.validate import ServingValidated, TrainingValidated
from shardwise.evidence.serving.runs import PUBLISHED_SERVING, read_serving
from shardwise.evidence.serving.validation_result import ValidatedServing
from shardwise.evidence.training.scores import Summary
from shardwise.evidence.training.table import PUBLISHED, read_table
from shardwise.evidence.training.validation_result import ValidatedRun
from shardwise.units import many, sig

TRAINING, SERVING = "training: ", "serving: "
EVERY = "every run"
MANY = 20
"""Runs of a source that is priced only once the choice has come to rest."""


def _counts() -> dict[str, int]:
    """Runs of every source, fewest first, and then of all."""
    found: dict[str, int] = {}
    trained = [row.get("source", "") for row in read_table(PUBLISHED).rows]
    served = [run.source for run in read_serving(PUBLISHED_SERVING).runs]
    for kind, sources in ((TRAINING, trained), (SERVING, served)):
        names = sorted(set(sources), key=lambda name: (sources.count(name), name))
        found |= {f"{kind}{name}": sources.count(name) for name in names}
        found[f"{kind}{EVERY}"] = len(sources)
    return found


RUNS: Mapping[str, int] = _counts()
COLUMNS = ("id", "source", "chip", "model", "predicted", "measured", "error", "bound_by")
NAMES = {"n": "runs", "median_abs_error": "median error", "p90_abs_error": "error of 9 in 10"}
SERVED = ("id", "source", "chip", "model", "predicted", "measured", "error", "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationState(ViewState):
    """The controls of the view."""

    runs: str = choice("Runs", tuple(RUNS), f"{TRAINING}torchtitan-h100-2024-12")
    by: str = choice("Coloured by", ("chip", "source", "model"), "model")


def _validate(state: ValidationState) -> list[VerbCall]:
    kind, _, source = state.runs.partition(": ")
    keywords = {
        "serving": True if kind == "serving" else None,
        "source": None if source == EVERY else source,
    }
    return [VerbCall(verb="validate", keywords=keywords)]


def _calls(state: ValidationState) -> list[VerbCall]:
    return _validate(state) if RUNS[state.runs] < MANY else []


def _many(state: ValidationState) -> list[VerbCall]:
    return [] if RUNS[state.runs] < MANY else _validate(state)


def _draw(state: ValidationState, answers: Sequence[Answer]) -> Drawn:
    if not answers:
        return Drawn(lines=[f"{RUNS[state.runs]:,} runs are being priced."], **_SAID)
    found = answers[0]
    assert isinstance(found, TrainingValidated | ServingValidated)
    figures = _figures(found.summary, "left out")
    if isinstance(found, TrainingValidated):
        figures |= _figures(found.summary.in_sample, "in sample")
    columns = COLUMNS if isinstance(found, TrainingValidated) else SERVED
    rows = [[getattr(one, name) for name in columns] for one in found.rows]
    what = "Step time" if isinstance(found, TrainingValidated) else "Time per output token"
    return Drawn(
        says=_sentence(found.summary, what),
        key=_key(found.summary),
        figures=[_plane(found.rows, state.by, what)],
        tables=[
            facts("Errors", figures, {name: "share" for name in figures if "error" in name}),
            TableData(
                title="Runs, each predicted by constants fitted without its group",
                header=columns,
                rows=rows,
                units={"predicted": "s", "measured": "s", "error": "share"},
            ),
            *_left_out(found),
        ],
        **_SAID,
    )


_SAID: Any = {
    "formula": "error = predicted / measured - 1",
    "source": "docs/lab/fit.md, docs/lab/fit_serving.md; "
    "each run's citation: `shardwise validate --csv`",
}


def _sentence(errors: Summary, what: str) -> str:
    """How wrong predictions are, to quote."""
    if errors.median_abs_error is None or errors.p90_abs_error is None:
        return "None of these runs can be priced."
    return (
        f"{what} of {many(errors.n, 'published run')}, predicted by constants fitted without the "
        f"run's group: half are within {sig(100 * errors.median_abs_error)} % of what was "
        f"measured, 9 in 10 within {sig(100 * errors.p90_abs_error)} %."
    )


def _key(errors: Summary) -> list[KeyFigure]:
    return [
        KeyFigure(label="runs", value=errors.n),
        KeyFigure(label="median error", value=errors.median_abs_error, unit="share"),
        KeyFigure(label="error of 9 in 10", value=errors.p90_abs_error, unit="share"),
    ]


def _figures(errors: Summary, of: str) -> dict[str, float | None]:
    return {f"{said}, {of}": getattr(errors, name) for name, said in NAMES.items()}


def _left_out(found: TrainingValidated | ServingValidated) -> list[TableData]:
    """Of servers the errors with each kind of group left out of the fit; else runs not priced."""
    if isinstance(found, TrainingValidated):
        rows = [[one.id, one.reason] for one in found.left_out]
        table = TableData(title="Runs that cannot be priced", header=("id", "why"), rows=rows)
        return [table] * bool(rows)
    rows = [
        [fold, which, *(getattr(errors, name) for name in NAMES)]
        for fold, one in found.left_out.items()
        for which, errors in (("TPOT", one.tpot), ("TTFT", one.ttft))
    ]
    header = ("fold", "of", *NAMES.values())
    units = dict.fromkeys(header[3:], "share")
    return [TableData(title="Left out of the fit", header=header, rows=rows, units=units)]


def _plane(
    rows: Sequence[ValidatedRun] | Sequence[ValidatedServing], by: str, what: str
) -> FigureData:
    marks = []
    for name in dict.fromkeys(str(getattr(one, by)) for one in rows):
        own = [one for one in rows if str(getattr(one, by)) == name]
        x, y = [one.measured for one in own], [one.predicted for one in own]
        marks.append(Mark(kind="dot", label=name, x=x, y=y, text=[one.id for one in own]))
    measured = sorted(one.measured for one in rows)
    ends = [measured[0], measured[-1]]
    marks.append(Mark(kind="line", label="predicted = measured", x=ends, y=ends, dashed=True))
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
    about="Published runs of training and of serving: predicted against measured.",
    group="Look up",
    state=ValidationState,
    calls=_calls,
    slow=_many,
    draw=_draw,
)
