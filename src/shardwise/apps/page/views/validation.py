"""Validation: every published run, predicted by a fit that left its group out, beside measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import State, choice
from shardwise.apps.page.figures import FigureAxis, FigureData, Mark, TableData, facts
from shardwise.apps.page.view import Drawn, PageView
from shardwise.verbs.answer import Answer

SOURCES = (
    "maxtext-readme", "tpu-recipes", "palm-paper", "torchtitan-h100-2024-12", "llama3-paper",
    "megatron-sc21-table1", "deepseek-v3-paper", "nemo-24.07", "mosaicml-llm-foundry",
)  # fmt: skip
COLUMNS = ("id", "chip", "slice", "model", "predicted", "measured", "error", "bound_by")


def _calls(state: State) -> list[VerbCall]:
    return [VerbCall(verb="validate", command="validate", keywords={"source": state["source"]})]


def _draw(state: State, answers: Sequence[Answer]) -> Drawn:
    found = answers[0].result
    summary = {name: found["summary"][name] for name in ("n", "median_abs_error", "p90_abs_error")}
    rows = [[one[name] for name in COLUMNS] for one in found["rows"]]
    units = {"predicted": "s", "measured": "s"}
    return Drawn(
        figures=[_plane(found["rows"], state["by"])],
        tables=[
            facts("Summary", summary),
            TableData(title="Runs", header=COLUMNS, rows=rows, units=units),
        ],
        lines=["Each run is predicted by a fit of the constants without its group."],
        formula="error = predicted / measured - 1",
        source="docs/fit.md; each run's citation stands in the table of `shardwise validate --csv`",
    )


def _plane(rows: Sequence[Mapping[str, Any]], by: str) -> FigureData:
    marks = []
    for name in dict.fromkeys(one[by] for one in rows):
        own = [one for one in rows if one[by] == name]
        x, y = ([one[which] for one in own] for which in ("measured", "predicted"))
        marks.append(Mark(kind="dot", label=str(name), x=x, y=y, text=[one["id"] for one in own]))
    measured = sorted(one["measured"] for one in rows)
    ends = [measured[0], measured[-1]]
    marks.append(Mark(kind="line", label="predicted = measured", x=ends, y=ends, dashed=True))
    return FigureData(
        id="plane",
        title="Step time, predicted against measured",
        x=FigureAxis(label="measured", unit="s", log=True),
        y=FigureAxis(label="predicted", unit="s", log=True),
        marks=marks,
    )


VIEW = PageView(
    name="validation",
    title="Validation",
    about="Published training runs: predicted against measured step times.",
    controls=(
        choice("source", "Source", SOURCES, "maxtext-readme"),
        choice("by", "Coloured by", ("chip", "bound_by", "model"), "model"),
    ),
    calls=_calls,
    draw=_draw,
)
