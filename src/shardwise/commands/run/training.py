"""Train a plan in this process: the planner's prediction beside the runtime's run."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from shardwise.boundary import Command, flag_of, number
from shardwise.boundary.options import option, place, required, several, switch
from shardwise.boundary.records import Record, hidden
from shardwise.commands.base.inputs import Hardware, Words, check_choice, pairs, whole_number, words
from shardwise.commands.pricing.plans import load_plan, price_plan
from shardwise.errors import BadRequest, ShardwiseError
from shardwise.hardware.device_names import is_chip
from shardwise.models import ModelConfig, load_model
from shardwise.models.flops import model_flops_per_token
from shardwise.models.specs import Moe
from shardwise.models.zoo import hf_config
from shardwise.plans import TrainPlan, is_of, model_hash
from shardwise.plans.software import made_elsewhere
from shardwise.runtime.processes import ProcessGroup, devices_here
from shardwise.runtime.trainer.checkpoint import Keeper
from shardwise.runtime.trainer.loop import TrainOutcome, TrainRun, train
from shardwise.runtime.trainer.metrics import Expected, StepMetrics, line_of
from shardwise.runtime.trainer.optimizer import Settings
from shardwise.runtime.trainer.stop import Stop

Progress = Callable[[str, StepMetrics | None], None]
"""Hears each step: the line to show and its metrics, None before the first."""
SCHEDULES = ("cosine", "linear", "constant")
MATMULS = ("plain", "one_way", "both_ways")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRunRequest(Command):
    """Train the model of a plan on text, on the devices here, and compare with the prediction.

    `plan` is the plan's file. The folder `out` gets a checkpoint of every `save_every` steps and of
    the last. `coordinator`, `processes` and `process` join several processes, and `processes` alone
    starts them all here. Numbers may be texts ("4k").
    """

    COMMAND: ClassVar[str] = "train"

    plan: str = field(kw_only=False, metadata=place(kind="file"))
    data: str = field(metadata=required("Text to train on.", metavar="FILE|DIR", group="Training"))
    steps: int = field(
        metadata=required(
            "Steps of the whole run, including resumed ones.",
            kind="whole",
            group="Training",
            meaning="how many steps to run",
        )
    )
    out: str | None = option("Checkpoints and metrics; default PLAN.run.", metavar="DIR")
    sets: Words = several("Change the plan first.", last=True, flag="--set", metavar="PATH=VALUE")
    seed: int = option("Seed of weights and data order.  [0]", default=0, kind="whole")
    lr: float = option(
        "Peak learning rate.  [0.001]", default=1e-3, kind="number", group="Training"
    )
    warmup: int = option(
        "Warm-up steps to the peak learning rate.  [0]",
        default=0,
        kind="whole",
        group="Training",
        meaning="steps up to the peak learning rate",
    )
    lr_schedule: str = option(
        "Down to 10 %.  [cosine]",
        default="cosine",
        values=SCHEDULES,
        group="Training",
        meaning="how the learning rate falls",
    )
    clip: float = option(
        "Most norm of the gradient; 0: no clipping.  [1]",
        default=1.0,
        kind="number",
        group="Training",
    )
    decay: float = option(
        "Weight decay of matrices and tables.  [0.1]", default=0.1, kind="number", group="Training"
    )
    save_every: int = option(
        "Steps per checkpoint; the last step always.",
        default=0,
        kind="whole",
        metavar="N",
        group="Training",
    )
    resume: bool = switch("Continue from the newest checkpoint in --out.", group="Training")
    tokenizer: str | None = option(
        "A tokenizer.json. Default: that of --init, or bytes.", metavar="FILE", group="Training"
    )
    init: str | None = option(
        "Begin with a Hugging Face checkpoint.", metavar="DIR", group="Training"
    )
    save_hf: str | None = option(
        "Save the trained model as a Hugging Face checkpoint.",
        metavar="DIR",
        group="Training",
        meaning="folder for the trained model as a Hugging Face checkpoint",
    )
    profile: bool = switch("Trace three steps into DIR/profile.", group="Training")
    tensor_matmul: str = option(
        "Collective matmuls over tensor, or XLA's own.  [plain]",
        default="plain",
        values=MATMULS,
        before="profile",
        group="Training",
        meaning="how matmuls over the tensor axis run",
    )
    cpu_devices: int | None = option(
        "N virtual CPU devices per process.", kind="whole", metavar="N", group="The machine"
    )
    coordinator: str | None = option(
        "Where the processes meet.", metavar="HOST:PORT", group="The machine"
    )
    processes: int | None = option(
        "Number of processes; alone it starts them here.",
        kind="whole",
        metavar="N",
        group="The machine",
        meaning="how many processes",
    )
    process: int | None = option(
        "Number of this process, from 0.",
        kind="whole",
        metavar="I",
        group="The machine",
        meaning="which process this is",
    )

    def read(self) -> "TrainRunRequest":
        """The same in plain values, which travel to workers as JSON. Raises BadRequest for what is
        out of range or no choice."""
        check_choice(self.lr_schedule, "--lr-schedule", SCHEDULES)
        check_choice(self.tensor_matmul, "--tensor-matmul", MATMULS)
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        values = {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}
        values |= {"sets": words(self.sets), "out": str(self.folder)}
        for name, (least, most) in _WHOLE.items():
            if values[name] is not None:
                values[name] = whole_number(
                    values[name], flag_of(self, name), least=least, most=most
                )
        for name, limits in _REAL.items():
            low, high = limits
            values[name] = number(
                values[name], flag_of(self, name), least=low, most=high, suffix=True
            )
        return replace(self, **values)

    @property
    def folder(self) -> Path:
        """Checkpoints and metrics."""
        return Path(self.out or f"{Path(self.plan).stem}.run")

    @property
    def group(self) -> ProcessGroup:
        """The processes that were asked for; raises BadRequest where they make no sense."""
        return ProcessGroup(coordinator=self.coordinator, count=self.processes, index=self.process)


_WHOLE = {
    "steps": (1, 10**9),
    "seed": (0, 2**32 - 1),
    "warmup": (0, 10**9),
    "save_every": (0, 10**9),
    "cpu_devices": (1, 4096),
    "processes": (1, 100_000),
    "process": (0, 100_000),
}
"""Least and most; a seed is what both NumPy and JAX take."""
_REAL = {
    "lr": (1e-12, 1e3),
    "clip": (0.0, 1e9),
    "decay": (0.0, 1e3),
}


@dataclass(frozen=True, kw_only=True)
class RunSeconds(Record):
    """Seconds of a step."""

    predicted: float | None
    """As the plan is priced on its slice; null where it cannot be."""
    measured: float | None
    """On the devices here; null where too few steps ran."""


@dataclass(frozen=True, kw_only=True)
class TrainedRun(Record):
    """A run that is done."""

    steps: int
    """Steps of the whole run."""
    from_step: int
    """The step that it went on from; 0 from the start."""
    loss: float | None
    """Of the last step; null where all steps were done already."""
    tokens_per_second: float | None
    """Tokens per second of all devices; null where too few steps ran."""
    step_seconds: RunSeconds
    """Seconds of a step."""
    mfu_dtype: str
    """The dtype of whose peak the utilisation is."""
    mfu: float | None
    """Model FLOPs utilisation; null where the devices are not the plan's."""
    devices: str
    """How many devices here, and their kind."""
    slice: str
    """The plan's chips."""
    devices_are_the_plans: bool
    """Whether the devices here are the plan's."""
    hf_checkpoint: str | None
    """The folder of the checkpoint for transformers; null without --save-hf."""
    checkpoint: str
    """The folder of the newest checkpoint."""
    metrics: str
    """The file of the metrics of each step."""

    notes: Sequence[str] = hidden(())
    """What a reader should know before trusting it."""


def run_here(request: TrainRunRequest, run: TrainRun, hear: Progress) -> TrainedRun:
    """Train in this process, of several or alone."""
    run = _with_peak(run)
    last = LastStep(hear)
    try:
        outcome = train(run, _reporter(run, last), lambda text: last(text, None))
    except KeyboardInterrupt as stop:
        raise last.stopped(run, stop) from None
    return _result(request, run, outcome)


class Stopped(ShardwiseError):
    """A signal ended the run; the message says where to go on. Exit code 128 and its number: 130
    after Ctrl-C, 143 after SIGTERM."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.exit_code = 128 + number


class LastStep:
    """Passes progress on and keeps the last step."""

    def __init__(self, hear: Progress) -> None:
        self.step, self._hear = 0, hear

    def __call__(self, line: str, metrics: StepMetrics | None) -> None:
        self.step = metrics.step if metrics else self.step
        self._hear(line, metrics)

    def stopped(self, run: TrainRun, stop: KeyboardInterrupt) -> Stopped:
        """What to say of a run that ended here."""
        number = stop.number if isinstance(stop, Stop) else signal.SIGINT
        keeper = Keeper(folder=run.out / "checkpoints", identity={})
        newest = keeper.newest()
        if newest is None:
            return Stopped(f"stopped at step {self.step}, before the first checkpoint", number)
        return Stopped(
            f"stopped at step {max(self.step, newest)}; newest checkpoint {keeper.path(newest)} "
            f"(step {newest}); continue with --resume",
            number,
        )


def _warnings(plan: TrainPlan, cfg: ModelConfig, expected: Expected) -> tuple[str, ...]:
    """What a reader of the losses and times must know; said before the first step."""
    found = [*([expected.why] if expected.why else []), *made_elsewhere(plan)]
    moes = [group.mlp for group in cfg.groups if isinstance(group.mlp, Moe)]
    # Every row of a device may choose the same experts: R k rows, of which R for each.
    free = max((moe.experts / moe.experts_per_token for moe in moes), default=0.0)
    if plan.expert_dispatch == "dense" and plan.expert_capacity < free:
        found.append(
            f"expert_capacity {plan.expert_capacity}: tokens beyond an expert's slots are dropped, "
            "so losses depend on the mesh; expert_dispatch ragged drops none, nor does "
            f"expert_capacity {free:g}"
        )
    return tuple(found)


def run_of(request: TrainRunRequest) -> TrainRun:
    """The request as values; the step is priced, and nothing is run yet."""
    path = Path(request.plan)
    plan = load_plan(path, pairs(request.sets, "--set", "PATH=VALUE", "remat=block"))
    if not isinstance(plan, TrainPlan):
        raise BadRequest(f"'{path}' is a serving plan; give `shardwise train` a training plan")
    cfg = load_model(plan.model)
    if not is_of(plan.model_hash, cfg):
        raise BadRequest(
            f"the plan '{path}' was made for another '{plan.model}' (hash {plan.model_hash}, now "
            f"{model_hash(cfg)}); plan again"
        )
    if request.save_hf and (cfg.towers or cfg.towers_unread):
        raise BadRequest(
            f"--save-hf would lose the vision or audio parts of '{plan.model}'; train without "
            "--save-hf"
        )
    expected = _expected(plan, cfg)
    return TrainRun(
        plan=plan,
        cfg=cfg,
        settings=Settings(
            steps=request.steps,
            lr=request.lr,
            warmup=request.warmup,
            schedule=request.lr_schedule,  # type: ignore[arg-type]
            clip=request.clip,
            decay=request.decay,
        ),
        data=Path(request.data),
        out=request.folder,
        seed=request.seed,
        tokenizer=Path(request.tokenizer) if request.tokenizer else None,
        init=Path(request.init) if request.init else None,
        save_hf=Path(request.save_hf) if request.save_hf else None,
        config=hf_config(plan.model) if request.save_hf else {},
        save_every=request.save_every,
        resume=request.resume,
        profile=request.profile,
        tensor_matmul=request.tensor_matmul,  # type: ignore[arg-type]
        expected=expected,
        warnings=_warnings(plan, cfg, expected),
    )


def _expected(plan: TrainPlan, cfg: ModelConfig) -> Expected:
    """The prediction; without a step time where the plan cannot be priced on its slice."""
    flops = model_flops_per_token(
        cfg, plan.sequence_length, causal=True, trained=plan.trains_component
    )
    seconds, why = None, ""
    try:
        seconds = price_plan(plan, Hardware()).answer.step_seconds.expected
    except BadRequest as error:
        why = f"no predicted step time: {error}"
    return Expected(
        step_seconds=seconds,
        flops_per_token=float(flops),
        dtype=plan.dtypes.compute,
        slice=plan.slice,
        why=why,
    )


def _with_peak(run: TrainRun) -> TrainRun:
    """The run with the devices here, and their peak where they are chips of the plan's slice."""
    hardware = Hardware().of_plan(run.plan)
    chip, (count, kind) = hardware.slice(run.plan.slice).slice.chip, devices_here()
    peak = None
    if run.expected.step_seconds is not None and is_chip(kind, chip):
        peak = chip.peak(run.plan.dtypes.compute) / chip.jax_devices_per_chip * run.plan.devices
    return replace(run, expected=replace(run.expected, peak=peak, here=f"{count} x {kind}"))


def _reporter(run: TrainRun, hear: Progress) -> Callable[[StepMetrics], None]:
    return lambda m: hear(line_of(m, run.settings.steps, run.expected), m)


def _result(request: TrainRunRequest, run: TrainRun, outcome: TrainOutcome) -> TrainedRun:
    rate = outcome.tokens_per_second
    measured = None if rate is None else run.plan.tokens / rate
    expected = run.expected
    known = rate and expected.flops_per_token and expected.peak
    return TrainedRun(
        steps=outcome.steps,
        from_step=outcome.from_step,
        loss=outcome.loss,
        tokens_per_second=rate,
        step_seconds=RunSeconds(predicted=expected.step_seconds, measured=measured),
        mfu_dtype=expected.dtype,
        mfu=rate * expected.flops_per_token / expected.peak if known else None,  # type: ignore[operator]
        devices=expected.here,
        slice=expected.slice,
        devices_are_the_plans=expected.peak is not None,
        hf_checkpoint=request.save_hf,
        checkpoint=str(outcome.checkpoint),
        metrics=str(request.folder / "metrics.jsonl"),
        notes=outcome.warnings,
    )
