"""The loop: batches in, steps, metrics and checkpoints out.

One step is in flight while the one before is reported, so that reading the loss costs the device
nothing. All that decides the numbers of a run stands in its `identity`, and a checkpoint of another
one is refused; how often it is saved or watched does not.

Memory of the host's own C library, which XLA on CPUs computes in.
"""

import ctypes
import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

from shardwise.errors import BadRequest, Caution, ShardwiseError
from shardwise.models import ModelConfig
from shardwise.plans import TrainPlan
from shardwise.plans.identity import former_hash, model_hash
from shardwise.plans.train import mesh_text
from shardwise.runtime.checkpoint import verify
from shardwise.runtime.parallel import check
from shardwise.runtime.parallel.setup import TensorMatmul
from shardwise.runtime.text.tokenizer import Tokenizer, tokenizer_of
from shardwise.runtime.trainer.checkpoint import Keeper, laid_out
from shardwise.runtime.trainer.data import Feed, corpus_of
from shardwise.runtime.trainer.hub import check_target, export, tokenizer_beside
from shardwise.runtime.trainer.lock import sole
from shardwise.runtime.trainer.manifest import check_identity
from shardwise.runtime.trainer.metrics import Expected, MetricsFile, StepMetrics, measured
from shardwise.runtime.trainer.optimizer import Settings, rate_of
from shardwise.runtime.trainer.pieces import proved
from shardwise.runtime.trainer.step import State, TrainProgram, program, shapes_of
from shardwise.runtime.trainer.stop import Signals, Stop, agreed
from shardwise.units import many

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Parameters of glibc's `mallopt` (malloc.h)."""

MADV_HUGEPAGE, HUGE_PAGE = 14, 2**21
"""Of Linux (asm-generic/mman-common.h); 2 MiB pages on x86-64 and on arm64 with 4 KiB pages."""


def keep_freed_memory() -> bool:
    """Let a process that trains on a CPU keep the memory that it frees, in huge pages where the
    kernel has them; whether it now does.

    XLA on CPUs takes the temporary memory of a step from malloc and frees it after. glibc maps
    blocks of that size and unmaps them, so that every step faults all its pages in again (4 KiB
    each; docs/lab/log.md). Kept, they are faulted in once; pages of 2 MiB spare the matmuls most
    misses of the TLB. It holds for the whole process, which must
    be glibc's; it does nothing on accelerators. Best before the first array is made.
    """
    if platform.libc_ver()[0] != "glibc" or not _on_cpus():
        return False
    libc = ctypes.CDLL(None)
    # Arenas other than the first map what they have no room for, whatever M_MMAP_MAX is.
    choices = ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1))
    if sum(libc.mallopt(name, value) for name, value in choices) < len(choices):
        return False
    _ask_for_huge_pages(libc, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    return True


def _on_cpus() -> bool:
    """Whether JAX computes on CPUs; asked of its settings first, since threads that a backend has
    started keep the arenas that they allocate from."""
    asked = jax.config.jax_platforms  # type: ignore[attr-defined]
    return (asked or jax.default_backend()) == "cpu"


def _ask_for_huge_pages(libc: ctypes.CDLL, size: int) -> None:
    """Grow the heap by `size` addresses, which hold no memory before they are written, and advise
    the kernel to back them with huge pages (madvise(2); what GLIBC_TUNABLES=glibc.malloc.hugetlb=1
    does, which must be set before a process starts)."""
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.free.argtypes = (ctypes.c_void_p,)
    block = libc.malloc(size)
    if block is None:  # a limit on the addresses of the process: small pages do too
        return
    first = -(-block // HUGE_PAGE) * HUGE_PAGE
    libc.madvise(first, (block + size - first) // HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE)
    libc.free(block)


ORPHANS = 10.0
"""Seconds that a worker of an earlier run has to end after its supervisor was killed."""
PROFILED = 3
"""Steps that a profile covers, after two that warm up."""

Report = Callable[[StepMetrics], None]
Note = Callable[[str], None]
"""Hears what is done before the first step, which may take a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRun:
    """One training run. `save_every` 0 saves at the end alone; `resume` goes on from the newest
    checkpoint in `out`, or begins where there is none. `init` is a Hugging Face checkpoint to begin
    with, whose tokenizer is taken where none is given; `save_hf` a folder for one of the end, with
    `config` as its config.json. `warnings` are said before the first step."""

    plan: TrainPlan
    cfg: ModelConfig
    settings: Settings
    data: Path
    out: Path
    seed: int = 0
    tokenizer: Path | None = None
    init: Path | None = None
    save_hf: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    save_every: int = 0
    resume: bool = False
    profile: bool = False
    tensor_matmul: TensorMatmul = "plain"
    expected: Expected = field(default_factory=Expected)
    warnings: tuple[str, ...] = ()
    supervised: bool = False

    @property
    def tokenizer_file(self) -> Path | None:
        """The tokenizer that is given, or comes with `init`; None for bytes."""
        return self.tokenizer or tokenizer_beside(self.init)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOutcome:
    """How a run ended; `from_step` is where it went on, 0 for a run from the start. `warnings` are
    those that were said."""

    steps: int
    from_step: int
    loss: float | None
    tokens_per_second: float | None
    checkpoint: Path
    warnings: tuple[str, ...] = ()


def train(
    run: TrainRun, report: Report = lambda _: None, note: Note = lambda _: None
) -> TrainOutcome:
    """Train to the last step. Raises BadRequest for what cannot be run here, ShardwiseError for a
    disk that fails or a loss that is not a number, and Stop where a signal ended it."""
    check(run.plan, run.cfg, run.tensor_matmul)  # first what no number of devices would mend
    check_devices(run.plan)
    keep_freed_memory()
    made = program(run.plan, run.cfg, run.settings, run.tensor_matmul)
    tokenizer = tokenizer_of(run.tokenizer_file, run.cfg.vocabulary)
    keeper = _keeper(run, tokenizer)
    if run.init is not None and keeper.newest() is None:
        verify(run.init, run.cfg)
    if run.save_hf is not None:
        check_target(run.save_hf, run.out, run.config)
    heard = _Warnings(note)
    with ExitStack() as ends:
        signals = ends.enter_context(Signals(heard, ours=jax.process_count() == 1))
        if not run.supervised:
            ends.enter_context(sole(run.out, "run-00000", heard))
        ends.enter_context(sole(run.out, f"process-{keeper.process:05}", heard, ORPHANS))
        start = _start(run, keeper, heard)
        for text in run.warnings:
            heard(Caution(text))
        return _train(run, made, tokenizer, keeper, start, report, heard, signals)


def _train(
    run: TrainRun,
    made: TrainProgram,
    tokenizer: Tokenizer,
    keeper: Keeper,
    start: int,
    report: Report,
    note: "_Warnings",
    signals: Signals,
) -> TrainOutcome:
    """From the text to the last checkpoint, in a folder that is ours."""
    note(f"reading the text of '{run.data}'")
    feed = Feed(
        corpus=corpus_of(run.data, tokenizer, run.out / "data", note, writes=keeper.process == 0),
        rows=run.plan.global_batch_sequences,
        length=run.plan.sequence_length,
        seed=run.seed,
    )
    keeper.identity = {**keeper.identity, "data": feed.corpus.fingerprint}
    note(_about(run, feed))
    state = _state(run, made, keeper, start)
    if keeper.process == 0:
        keeper.clean()
    _together("shardwise: ready")
    if start < run.settings.steps:
        note(f"compiling the step ({start} of {run.settings.steps} done)")
    with signals.waiting():
        state, told = _steps(run, made, feed, keeper, state, start, report, signals)
    if run.save_hf is not None:
        note(f"writing '{run.save_hf}'")
        whole = made.whole(state)
        export(run.save_hf, whole, run.cfg, run.config, run.tokenizer_file, run.init)
        _together("shardwise: exported")
    return TrainOutcome(
        steps=run.settings.steps,
        from_step=start,
        loss=told.loss,
        tokens_per_second=told.rate,
        checkpoint=keeper.path(run.settings.steps),
        warnings=tuple(note.said),
    )


class _Warnings:
    """Passes notes on and keeps those that warn."""

    def __init__(self, note: Note) -> None:
        self.said: list[str] = []
        self._note = note

    def __call__(self, text: str) -> None:
        if isinstance(text, Caution):
            self.said.append(str(text))
        self._note(text)


def _about(run: TrainRun, feed: Feed) -> str:
    """What the data is, and how often a run sees it."""
    corpus, rows = feed.corpus, feed.corpus.rows(feed.length)
    epochs = run.settings.steps * feed.rows / rows
    documents = many(len(corpus.starts), "document")
    return (
        f"{len(corpus.tokens):,} tokens in {documents}: {rows:,} sequences of "
        f"{feed.length:,}, seen {epochs:.2g} times in {run.settings.steps:,} steps"
    )


def _state(run: TrainRun, made: TrainProgram, keeper: Keeper, start: int) -> State:
    """The state to go on from: of a checkpoint, of `init`, or random."""
    if not start and run.init is not None:
        return made.begin_from(run.init)
    if not start:
        return made.begin(jax.random.key(run.seed))
    folder = keeper.path(start)
    manifest = check_identity(folder, keeper.identity, former=_former(run))
    saved = proved(folder, manifest)
    state = made.begin(jax.random.key(run.seed))
    wanted = shapes_of(state)
    jax.tree.map(lambda x: x.delete(), state)  # only its layout was needed
    return laid_out(folder, manifest, saved, wanted, made.unpadded)


def check_devices(plan: TrainPlan) -> None:
    """Raise BadRequest unless the mesh is exactly the devices at hand."""
    here = jax.devices()
    if len(here) != plan.devices:
        raise BadRequest(
            f"the plan's mesh {mesh_text(plan.mesh)} has {plan.devices} device(s) and "
            f"{len(here)} {here[0].platform} device(s) are here; plan for {len(here)}, or give "
            f"--cpu-devices {max(1, plan.devices // jax.process_count())} for virtual ones"
        )


def identity_of(run: TrainRun, tokenizer: Tokenizer) -> dict[str, Any]:
    """What decides the numbers of a run, but for the data and the mesh."""
    plan = run.plan
    return {
        "model": model_hash(run.cfg),
        "optimizer": plan.optimizer,
        **{f"dtypes.{name}": value for name, value in asdict(plan.dtypes).items()},
        "global_batch_sequences": plan.global_batch_sequences,
        "sequence_length": plan.sequence_length,
        "tokenizer": tokenizer.name,
        "init": None if run.init is None else run.init.resolve().name,
        "seed": run.seed,
        **asdict(run.settings),
    }


def _former(run: TrainRun) -> dict[str, Any]:
    """What an earlier version wrote in the identity of the run."""
    return {"model": former_hash(run.cfg)}


def _keeper(run: TrainRun, tokenizer: Tokenizer) -> Keeper:
    return Keeper(
        folder=run.out / "checkpoints",
        identity=identity_of(run, tokenizer),
        process=jax.process_index(),
        processes=jax.process_count(),
    )


def _start(run: TrainRun, keeper: Keeper, note: Note) -> int:
    """The step to go on from; raises BadRequest where that would mix two runs."""
    newest, damaged = keeper.newest(), keeper.damaged()
    if not run.resume and (newest is not None or damaged):
        last = max([newest or 0, *damaged])
        raise BadRequest(
            f"'{run.out}' already holds a run up to step {last}; add --resume, or give another "
            "--out"
        )
    after = "starting at step 0" if newest is None else f"continuing from step {newest}"
    for step, why in damaged.items():
        note(Caution(f"the checkpoint '{keeper.path(step)}' is damaged ({why}); {after}"))
    if newest is None:
        if run.resume and not damaged:
            note(Caution(f"no checkpoint in '{keeper.folder}', {after}"))
        return 0
    newest_path = keeper.path(newest)
    check_identity(newest_path, keeper.identity, but=("data",), former=_former(run))
    return newest


def _steps(
    run: TrainRun,
    made: TrainProgram,
    feed: Feed,
    keeper: Keeper,
    state: State,
    start: int,
    report: Report,
    signals: Signals,
) -> "tuple[State, _Told]":
    """From step `start` (so many are done) to the last, or to a signal (Stop)."""
    steps, rate = run.settings.steps, rate_of(run.settings)
    told = _Told(run, start, report, keeper.process == 0)
    with ExitStack() as ends:
        ends.callback(told.close)
        ends.callback(lambda: None if signals.urgent else keeper.settle())
        tracing = _ProfileWindow(run, start) if run.profile else None
        batch = feed.batch(start, made.batch) if start < steps else {}
        for step in range(start, steps):
            if tracing:
                tracing.at(step)
            state, values = made.step(state, batch)
            told.next(step + 1, {**values, "lr": jnp.asarray(rate(step))})
            batch = feed.batch(step + 1, made.batch) if step + 1 < steps else {}
            keeper.check()
            signal = agreed(step + 1, signals)
            if _saves(run, step + 1) or signal is not None:
                told.flush()  # a loss that is not a number is not worth keeping
                keeper.save(step + 1, state)
            if signal is not None:
                keeper.wait()
                _together("shardwise: stopped")
                raise Stop(signal)
        told.flush()
        if tracing:
            tracing.stop()
        keeper.wait()
        _together("shardwise: saved")
    return state, told


def _saves(run: TrainRun, done: int) -> bool:
    return done == run.settings.steps or bool(run.save_every and done % run.save_every == 0)


class _Told:
    """Reports each step when the next is under way; the first after a start is not timed."""

    def __init__(self, run: TrainRun, start: int, report: Report, writes: bool) -> None:
        self.loss: float | None = None
        self.rate: float | None = None
        self._run, self._report = run, report
        self._record = MetricsFile(run.out, start) if writes else None
        self._waiting: tuple[int, dict[str, jax.Array]] | None = None
        self._clock: float | None = None
        self._timed: list[float] = []

    def next(self, step: int, values: dict[str, jax.Array]) -> None:
        self.flush()
        self._waiting = step, values

    def flush(self) -> None:
        if self._waiting is None:
            return
        (step, values), self._waiting = self._waiting, None
        numbers = {name: float(value) for name, value in values.items()}  # waits for the step
        now = time.perf_counter()
        seconds = None if self._clock is None else now - self._clock
        self._clock = now
        tokens = self._run.plan.tokens
        found = measured(step, numbers, tokens, seconds, self._run.expected)
        self._keep(found)

    def _keep(self, found: StepMetrics) -> None:
        if found.loss != found.loss or found.loss in (float("inf"), -float("inf")):
            raise ShardwiseError(
                f"the loss of step {found.step} is {found.loss}; lower --lr, lengthen --warmup or "
                "set --clip, and start again from the last checkpoint with --resume or anew"
            )
        self.loss = found.loss
        if found.seconds is not None:
            self._timed.append(found.seconds)
            self.rate = self._run.plan.tokens * len(self._timed) / sum(self._timed)
        if self._record is not None:
            try:
                self._record.add(found)
            except OSError as error:
                raise ShardwiseError(
                    f"cannot write the metrics of step {found.step} to '{self._run.out}': "
                    f"{error.strerror}; free space and start again with --resume"
                ) from None
        self._report(found)

    def close(self) -> None:
        if self._record is not None:
            self._record.close()


class _ProfileWindow:
    """A trace of a few steps once the program is warm, in OUT/profile."""

    def __init__(self, run: TrainRun, start: int) -> None:
        first = min(start + 2, max(start, run.settings.steps - PROFILED))
        self._folder, self._first, self._on = run.out / "profile", first, False

    def at(self, step: int) -> None:
        if step == self._first:
            jax.profiler.start_trace(str(self._folder))
            self._on = True
        elif step == self._first + PROFILED:
            self.stop()

    def stop(self) -> None:
        if self._on:
            jax.profiler.stop_trace()
            self._on = False


def _together(name: str) -> None:
    """Until every process is here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)
