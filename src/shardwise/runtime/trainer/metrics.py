"""What a run reports of each step: a line of JSON, TensorBoard, and a line to watch."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardwise.runtime.trainer.events import EventFile
from shardwise.units import format_count, format_seconds

SHOWN = ("loss", "grad_norm", "lr", "tokens_per_second", "seconds", "mfu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What was predicted: seconds of a step on the plan's slice (None where it cannot be priced,
    and `why`), FLOPs of a token (forward and backward), and the peak FLOP/s of the devices at hand
    in `dtype` (None where they are not the plan's); `here` names those."""

    step_seconds: float | None = None
    flops_per_token: float | None = None
    peak: float | None = None
    dtype: str = ""
    slice: str = ""
    here: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One step: `step` counts from 1, `tokens` all of them so far, `seconds` this step's time;
    None in the step that compiles the program."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    seconds: float | None
    tokens_per_second: float | None
    mfu: float | None


def measured(
    step: int, values: Mapping[str, float], tokens: int, seconds: float | None, expected: Expected
) -> StepMetrics:
    """A step's metrics from its values, the tokens of one step and the time that it took."""
    rate = None if not seconds else tokens / seconds
    known = rate and expected.flops_per_token and expected.peak
    mfu = rate * expected.flops_per_token / expected.peak if known else None  # type: ignore[operator]
    return StepMetrics(
        step=step,
        loss=values["loss"],
        grad_norm=values["grad_norm"],
        lr=values["lr"],
        tokens=step * tokens,
        seconds=seconds,
        tokens_per_second=rate,
        mfu=mfu,
    )


def line_of(m: StepMetrics, steps: int, expected: Expected) -> str:
    """A step in one line, measured beside predicted; on other devices than the plan's the line says
    so, for its times are no measure of the plan.

    >>> from dataclasses import replace
    >>> m = StepMetrics(step=2, loss=1.5, grad_norm=0.3, lr=1e-3, tokens=512, seconds=0.5,
    ...                 tokens_per_second=512.0, mfu=None)
    >>> line_of(m, 10, Expected(step_seconds=0.001, slice="v5e:1x1", here="1 x cpu"))
    'step 2/10  loss 1.5000  512 tokens/s  step 500 ms on 1 x cpu (1 ms predicted for v5e:1x1)'
    >>> line_of(m, 10, Expected(step_seconds=0.4, slice="v5e:1x1", peak=1e15))
    'step 2/10  loss 1.5000  512 tokens/s  step 500 ms (predicted 400 ms)'
    >>> line_of(replace(m, mfu=0.4), 10, Expected(peak=1e15, dtype="bf16"))
    'step 2/10  loss 1.5000  512 tokens/s  step 500 ms  MFU 40.0% of bf16'
    """
    parts = [f"step {m.step}/{steps}", f"loss {m.loss:.4f}"]
    if m.seconds is None or m.tokens_per_second is None:
        return "  ".join([*parts, "(compiled)"])
    parts.append(f"{format_count(m.tokens_per_second)} tokens/s")
    step, predicted = f"step {format_seconds(m.seconds)}", expected.step_seconds
    if expected.peak is None:
        step += f" on {expected.here}" if expected.here else ""
        step += (
            f" ({format_seconds(predicted)} predicted for {expected.slice})" if predicted else ""
        )
    elif predicted is not None:
        step += f" (predicted {format_seconds(predicted)})"
    parts.append(step)
    if m.mfu is not None:
        parts.append(f"MFU {m.mfu:.1%} of {expected.dtype}")
    return "  ".join(parts)


class MetricsFile:
    """metrics.jsonl and a TensorBoard file in a folder; a resumed run goes on after `step`."""

    def __init__(self, folder: Path, step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "metrics.jsonl"
        _cut_after(self._path, step)
        self._lines = self._path.open("a", encoding="utf-8")
        self._events = EventFile(folder / "tensorboard")

    def add(self, m: StepMetrics) -> None:
        """Write one step."""
        values: dict[str, Any] = asdict(m)
        self._lines.write(json.dumps(values) + "\n")
        self._lines.flush()
        shown = {name: values[name] for name in SHOWN if values[name] is not None}
        self._events.scalars(m.step, shown)

    def close(self) -> None:
        """End both files."""
        self._lines.close()
        self._events.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl up to one that is none of a step: a last one may have been cut
    off by a kill."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            read = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(read, dict) or type(read.get("step")) is not int:
            break
        found.append(read)
    return found


def _cut_after(path: Path, step: int) -> None:
    """Drop the lines of steps that will be taken again."""
    if path.exists():
        kept = [json.dumps(m) + "\n" for m in read_metrics(path) if m["step"] <= step]
        begun = path.with_name(f"{path.name}.part")
        begun.write_text("".join(kept), encoding="utf-8")
        os.replace(begun, path)
