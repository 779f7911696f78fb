"""Megatron's table of runs with the MFU that the planner predicts beside the measured one (ch. 12,
quiz 5).

The measured number is the table's TFLOP/s per GPU over the dense peak. The plans are those that
`audit:NAME` means; the table leaves out how they recompute and how they split a batch (the files
say what is assumed), so that the two need not agree.
"""

from shardwise.book.figures import Figure, Series
from shardwise.book.questions import BookAnswer, book_answer, entries
from shardwise.models import load_model, params_total
from shardwise.planner.training import TrainAnswer
from shardwise.plans.named import audit_names, plan_path
from shardwise.workflows.inputs import ChipWords
from shardwise.workflows.plan_file import price_given

ROWS = "table.gpu.megatron."
"""Where the ids of the table's rows begin; what follows is the run's size."""


def megatron_mfu() -> Figure:
    """MFU of the runs by their parameters: measured, by the book's rates, and as expected with what
    our chips' constants take off."""
    rows = sorted(_row(one.id) for one in entries().values() if _audit(one.id) in audit_names())
    x = tuple(row[0] for row in rows)
    labels = ("measured", "by the book's rates", "expected")
    return Figure(
        id="fig.gpu.megatron",
        chapter="12",
        title="Megatron's runs on H100: MFU measured and predicted",
        source="ch. 12, quiz 5, table of Megatron runs; the plans of audit:megatron-*",
        x_label="parameters",
        x_unit="params",
        y_label="MFU",
        y_unit="",
        log="x",
        series=tuple(
            Series(label=label, x=x, y=tuple(row[i] for row in rows))
            for i, label in enumerate(labels, 1)
        ),
        readings={f"{label}.{row[4]}": row[i] for row in rows for i, label in enumerate(labels, 1)},
    )


def _audit(entry_id: str) -> str:
    """The plan of a row of the table, whether there is one or not."""
    return f"megatron-{entry_id.removeprefix(ROWS).lower()}" if entry_id.startswith(ROWS) else ""


def _row(entry_id: str) -> tuple[float, float, float, float, str]:
    """Parameters, the three utilisations and the size of one run."""
    found: BookAnswer = book_answer(entry_id)
    measured = next(float(w.value) for w in found.steps if w.step.rule == "utilisation")
    name = _audit(entry_id)
    params = params_total(load_model(str(plan_path(f"audit:{name}").with_suffix(".json"))))
    predicted = (_predicted(name, constants) for constants in ("book", "vendor"))
    return float(params), measured, *predicted, entry_id.removeprefix(ROWS)  # type: ignore[return-value]


def _predicted(name: str, constants: str) -> float:
    answer = price_given(f"audit:{name}", ChipWords(constants=constants)).answer
    assert isinstance(answer, TrainAnswer), "the audited plans train"
    return float(answer.mfu)
