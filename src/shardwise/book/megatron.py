"""Megatron's table of runs with the MFU that the planner predicts beside the measured one (ch. 12,
quiz 5).

The measured number is the table's TFLOP/s per GPU over the dense peak. The plans are those that
`audit:NAME` means; the table leaves out how they recompute and how they split a batch (the files
say what is assumed). The figure says in words where a measurement is beyond the range of what was
expected, and by how much.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from shardwise.book.figures import Figure, Series
from shardwise.book.questions import book_answer, entries
from shardwise.hardware import load_chip, parse_slice
from shardwise.models import load_model, params_total
from shardwise.planner.evaluate import TrainAnswer, evaluate_train
from shardwise.planner.expected import expected_range, shift_of
from shardwise.plans import TrainPlan
from shardwise.plans.files import plan_from, read_values
from shardwise.plans.named import audit_names, plan_path

ROWS = "table.gpu.megatron."
"""Where the ids of the table's rows begin; what follows is the run's size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronRun:
    """One run of the table: its size as it is called, parameters, MFU measured and predicted in the
    order of `LABELS`, and the times that 8 of 10 runs take, at least and at most, over the
    expected."""

    size: str
    params: float
    mfu: tuple[float, float, float]
    times: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Measured over expected."""
        return self.mfu[0] / self.mfu[2]

    @property
    def beyond(self) -> bool:
        """Whether the measurement is outside the range of 8 of 10 runs."""
        return not self.times[0] <= 1 / self.ratio <= self.times[1]


LABELS = ("measured", "by the book's rates", "expected")
"""The MFU of a run: as the table has it, with the book's numbers of the chip of which nothing is
taken off, and with what our constants take off."""


def megatron_mfu() -> Figure:
    """MFU of Megatron's runs by their parameters, measured and predicted. By the book's rates, and
    with what the constants of our chips and software take off."""
    known = [one.id for one in entries().values() if _audit(one.id) in audit_names()]
    runs = sorted(map(_run, known), key=lambda run: run.params)
    x = tuple(run.params for run in runs)
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
            Series(label=label, x=x, y=tuple(run.mfu[i] for run in runs))
            for i, label in enumerate(LABELS)
        ),
        readings={
            f"{label}.{run.size}": mfu
            for run in runs
            for label, mfu in zip(LABELS, run.mfu, strict=True)
        },
        notes=disagreement(runs),
    )


def disagreement(runs: Sequence[MegatronRun]) -> tuple[str, ...]:
    """Where measured and expected are further apart than such predictions are."""
    beyond = [run for run in runs if run.beyond]
    if not beyond:
        return ()
    ratios, fastest = [run.ratio for run in beyond], max(1 / run.times[0] for run in beyond)
    first = f"{len(beyond)} of {len(runs)} runs were measured {min(ratios):.2f} to "
    first += f"{max(ratios):.2f} times as fast as expected"
    return (f"They disagree: {first}. Of 10 such runs 8 are at most {fastest:.2f} times as fast.",)


def _audit(entry_id: str) -> str:
    """The plan of a row of the table, whether there is one or not."""
    return f"megatron-{entry_id.removeprefix(ROWS).lower()}" if entry_id.startswith(ROWS) else ""


def _run(entry_id: str) -> MegatronRun:
    worked = book_answer(entry_id).steps
    name = _audit(entry_id)
    expected = _priced(name, "vendor")
    config = plan_path(f"audit:{name}").with_suffix(".json")
    return MegatronRun(
        size=entry_id.removeprefix(ROWS),
        params=float(params_total(load_model(str(config)))),
        mfu=(
            next(float(one.value) for one in worked if one.step.rule == "utilisation"),
            float(_priced(name, "book").mfu),
            float(expected.mfu),
        ),
        times=_times(expected),
    )


def _times(answer: TrainAnswer) -> tuple[float, float]:
    """The ends of the range of 8 of 10 runs, over the expected time."""
    found, seconds = expected_range(answer), answer.step_seconds.expected
    assert found is not None, "prices by our own constants have a range"
    return found.low / seconds, found.high / seconds


def _priced(name: str, constants: str) -> TrainAnswer:
    path = f"audit:{name}"
    plan = plan_from(read_values(path, {"constants": constants}), path)
    assert isinstance(plan, TrainPlan), "the audited plans train"
    piece = parse_slice(plan.slice, partial(load_chip, constants=constants))
    answer = evaluate_train(plan, load_model(plan.model), piece)
    return answer.at(shift_of(answer, None))
