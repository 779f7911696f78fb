"""Published serving measurements: rows of explicit columns -> runs that a plan can express.

A table has one configuration a row in the columns `EXPLICIT`, or one metric a row in the notation
of collected tables (`notation.py`), which is turned into those columns first. Every row that is no
run has a reason and is counted. What a row leaves open:

- `kv` empty: what the engine takes by default. TensorRT-LLM keeps the cache in fp8 where the
  checkpoint is quantized (`kv_cache_quant_algo`), vLLM and SGLang in bf16 ("auto").
- fp8 and fp4 weights name the linear layers; embeddings, router and head stay bf16. An fp4 model
  with latent attention keeps its attention in bf16 except what makes its output
  (nvidia/DeepSeek-R1-0528-FP4-v2, which the public benchmark serves), and gpt-oss is what
  its checkpoint says, whatever the row calls it.
- A configuration published twice with the same figures is one run; one published with times more
  than 5 % apart differs in something that no column names, so both are left out.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf
from pathlib import Path

from shardwise import boundary
from shardwise.boundary import number
from shardwise.boundary.tables import WrongCell
from shardwise.errors import BadRequest, ShardwiseError
from shardwise.evidence.serving import notation
from shardwise.evidence.serving.loop import MEMORY_SHARE, TOKEN_BUDGET
from shardwise.evidence.serving.notation import Row
from shardwise.hardware import Slice, Torus, parse_slice, slices_of
from shardwise.hardware.catalogue import load_chip
from shardwise.models import ModelConfig, load_model
from shardwise.models.specs import LatentAttention, Moe
from shardwise.models.zoo import zoo_names
from shardwise.planner.serve.server import heads_divide
from shardwise.units import DTYPE_BYTES
from shardwise.work import grouped

EXPLICIT: Mapping[str, str] = {
    "source": "who published it; reports alone read it",
    "citation": "where it was read",
    "engine": "family of the software that served",
    "release": "its version; empty where it is not stated",
    "model": "zoo name",
    "hardware": "chip",
    "queue_interval": "steps from one look at the queue to the next; empty where it is each step",
    "max_num_seqs": "most sequences that run on a server; empty where memory alone limits them",
    "max_num_batched_tokens": "most tokens of a step; empty where it is 8,192",
    "memory_share": "share of the memory that the engine takes; empty where it is 0.9",
    "waves": "requests of the benchmark for each in flight, all started at once; empty where many",
    "held_steps": "steps that a prompt waits for others to come with it; empty where none",
    "cold": "1 where the benchmark sent no request before it measured; empty where it did",
    "tensor": "devices that cut the heads of one sequence",
    "data": "parts of the batch with attention of their own",
    "expert": "devices over which whole experts lie apart; 1 where they are cut like an MLP",
    "workers": "servers that decode; 0 where prompts and answers share their servers",
    "prefill_workers": "servers that prefill alone",
    "prefill_tensor": "their tensor",
    "prefill_data": "their data",
    "drafts": "tokens guessed per step and sequence",
    "weights": "dtype of the linear layers",
    "kv": "dtype of the cache",
    "concurrency": "requests in flight",
    "input_length": "tokens of the longest prompt",
    "output_length": "tokens of the longest answer",
    "shortest": "the shortest of either, as a share of the longest; lengths lie evenly between",
    "kind": "served (a closed loop of requests), or step (one batch prefilled, then decoded)",
    "ttft_ms": "mean time to the first token",
    "tpot_ms": "mean time per output token",
    "converted_from": "what told the columns that the published row does not state",
}
"""Columns of a table of serving runs."""

LATER = (
    *("queue_interval", "max_num_seqs", "max_num_batched_tokens", "memory_share"),
    *("waves", "held_steps", "cold"),
)
"""Columns that a table may lack."""

DTYPES = {
    "auto": "",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "w8a8": "int8",
    "w8a16": "int8",
    "w4a16": "int4",
    "awq": "int4",
    "gptq": "int4",
}
"""Engines' names of dtypes and ours; "" where the engine's default is meant."""

PUBLISHED_SERVING = Path(__file__).parent / "data" / "serving_runs.csv"
"""The runs that the filter keeps of tables published by ai-dynamo/aiconfigurator and
sgl-project/sglang-jax (Apache-2.0) and Mutinifni/splitwise-sim (MIT), each with its citation;
scripts/serving_rows.py wrote it."""

KINDS = ("served", "step")
_SAME = 1.05
"""Rows of one configuration contradict each other if TPOT differs by more."""
_CAPPED = "pcap"
_LINEAR = ("attention", "linear_attention", "mlp_dense", "routed_experts", "shared_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillWorkers:
    """The servers of a disaggregated deployment that prefill."""

    workers: int
    piece: Slice
    tensor: int
    data: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """One measured configuration. Seconds; `kind` is "served" (a closed loop of `concurrency`
    requests, times averaged over requests) or "step" (one batch prefilled at once, then decoded).
    `workers` servers of `piece` decode; `prefill` are those that prefill where they are others.
    `queue_interval` steps lie between the looks at the queue; `most_running` sequences at most run
    on a server, in steps of at most `token_budget` tokens, in a `memory_share` of its memory.
    `waves` requests come for each in flight, the first of them at once, and a prompt is held back
    for `held_steps` steps; a `cold` server had no request before them.
    Lengths lie evenly between `shortest` times the stated ones and these."""

    source: str
    family: str
    version: str
    model: str
    cfg: ModelConfig
    piece: Slice
    tensor: int
    data: int
    expert: int
    workers: int
    prefill: PrefillWorkers | None
    drafts: int
    queue_interval: int
    most_running: float
    token_budget: int
    memory_share: float
    waves: float
    held_steps: int
    cold: bool
    weights: str
    kv: str
    concurrency: int
    longest_input: int
    longest_output: int
    shortest: float
    kind: str
    tpot: float
    ttft: float | None

    @property
    def input_length(self) -> float:
        """Mean tokens of a prompt."""
        return self.longest_input * (1 + self.shortest) / 2

    @property
    def output_length(self) -> float:
        """Mean tokens of an answer."""
        return self.longest_output * (1 + self.shortest) / 2

    @property
    def chip(self) -> str:
        return self.piece.chip.id

    @property
    def mixture(self) -> bool:
        """Whether the model has routed experts."""
        return any(isinstance(layer.mlp, Moe) for layer in self.cfg.groups)

    @property
    def engine(self) -> str:
        """Family and version."""
        return f"{self.family} {self.version}".strip()

    @property
    def release(self) -> str:
        """Family and the first two numbers of its version: what is left out together."""
        found = re.match(r"\d+\.\d+", self.version)
        name = found.group(0) if found else self.version.partition("-")[0] or "unstated"
        return f"{self.family} {name}"

    @property
    def id(self) -> str:
        """What tells a run from all others."""
        lengths = f"{self.longest_input}x{self.longest_output}"
        parts = [f"{self.chip}:{self.tensor}x{self.data}"]
        if self.prefill is not None:
            p = self.prefill
            parts = [f"{self.chip}:{p.workers}x{p.tensor}x{p.data}+{self.workers}x{parts[0]}"]
        if self.expert > 1:
            parts.append(f"ep{self.expert}")
        if self.drafts:
            parts.append(f"mtp{self.drafts}")
        told = {
            "seqs": (self.most_running, inf),
            "budget": (self.token_budget, TOKEN_BUDGET),
            "share": (self.memory_share, MEMORY_SHARE),
        }
        parts += [f"{name}{value}" for name, (value, default) in told.items() if value != default]
        return (
            f"{self.engine}/{self.model}/{self.weights}/kv-{self.kv}/{'/'.join(parts)}/{lengths}/"
            f"c{self.concurrency}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingTable:
    """The runs of a table and why how many rows are not among them; of each reason the first row,
    where a table says its lines."""

    rows: int
    runs: tuple[ServingRun, ...]
    left_out: Mapping[str, int]
    first: Mapping[str, str] = field(default_factory=dict)


def read_serving(path: Path) -> ServingTable:
    """The runs of a CSV table. Raises BadRequest where it cannot be read or lacks a column."""
    table = boundary.read_table(path, "the table", remedy="give a CSV file")
    collected = "parallelism" in table.columns
    needed = tuple(column for column in EXPLICIT if column not in LATER)
    boundary.check_columns(table, notation.COLUMNS if collected else needed)
    return collected_runs(table.rows) if collected else serving_runs(table.rows, table.lines)


def collected_runs(rows: Sequence[Row]) -> ServingTable:
    """The runs of rows in the notation of collected tables, one metric a row."""
    configurations, left_out = notation.configurations(rows)
    found = serving_runs(configurations)
    for reason, count in found.left_out.items():
        left_out[reason] = left_out.get(reason, 0) + count
    return replace(found, rows=len(rows), left_out=left_out)


def serving_runs(rows: Sequence[Row], lines: Sequence[int] = ()) -> ServingTable:
    """Rows of explicit columns as runs, and the reasons for the others; `lines` are theirs in a
    file."""
    left_out: dict[str, int] = {}
    first: dict[str, str] = {}
    runs: list[ServingRun] = []
    for index, row in enumerate(rows):
        try:
            runs.append(run_of(row))
        except ShardwiseError as error:
            reason = error.kind if isinstance(error, WrongCell) else str(error)
            left_out[reason] = left_out.get(reason, 0) + 1
            if lines:
                first.setdefault(reason, f"line {lines[index]}: {error}")
    kept, twice, apart = _distinct(runs)
    for reason, rows_out in (
        ("the same configuration and times are there already", twice),
        ("two runs of one configuration more than 5 % apart: a column is missing", apart),
    ):
        if rows_out:
            left_out[reason] = rows_out
    return ServingTable(rows=len(rows), runs=tuple(kept), left_out=left_out, first=first)


def run_of(row: Row) -> ServingRun:
    """One configuration. A WrongCell has a `kind`, which many rows may share."""
    untimed = "no time per output token (throughput, phases or percentiles only)"
    if row["kind"] not in KINDS:
        raise WrongCell("kind", row["kind"], f"it must be {' or '.join(KINDS)}", untimed)
    if not row["tpot_ms"].strip():
        raise WrongCell("tpot_ms", "", "a run needs its time per output token", untimed)
    weights = _dtype(row, "weights")
    cfg = served_model(row["model"], weights)
    tensor, data = _count(row, "tensor"), _count(row, "data")
    piece = served_slice(row["hardware"], tensor * data)
    for column in ("concurrency", "input_length", "output_length"):
        if not re.fullmatch(r"0*[1-9]\d{0,8}", row[column], re.ASCII):
            kind = "no fixed concurrency or no fixed lengths"
            raise WrongCell(column, row[column], "it must be a whole number of at least 1", kind)
    prefill = _prefill(row)
    degrees = {"tensor": tensor, "prefill_tensor": prefill.tensor if prefill else 1}
    for column, degree in degrees.items():
        if not heads_divide(cfg, degree):
            kind = "a tensor degree that does not divide the model's heads"
            raise WrongCell(column, degree, f"it must divide the heads of {cfg.name}", kind)
    kv = _dtype(row, "kv") or notation.kv_of(row["engine"], weights)
    budget, share = "max_num_batched_tokens", "memory_share"
    return ServingRun(
        source=row["source"].split("/")[0],
        family=row["engine"],
        version=row["release"],
        model=row["model"],
        cfg=cfg,
        piece=piece,
        tensor=tensor,
        data=data,
        expert=_count(row, "expert"),
        workers=_count(row, "workers") if prefill else 1,
        prefill=prefill,
        drafts=_count(row, "drafts", least=0) if row["drafts"].strip() else 0,
        queue_interval=_count(row, "queue_interval") if row.get("queue_interval") else 1,
        most_running=_count(row, "max_num_seqs") if row.get("max_num_seqs") else inf,
        token_budget=_count(row, budget) if row.get(budget) else TOKEN_BUDGET,
        memory_share=_number(row, share, 0.01, 1.0) if row.get(share) else MEMORY_SHARE,
        waves=_count(row, "waves") if row.get("waves") else inf,
        held_steps=_count(row, "held_steps") if row.get("held_steps") else 0,
        cold=bool(_count(row, "cold", least=0)) if row.get("cold") else False,
        weights=weights,
        kv={"fp16": "f16"}.get(kv, kv),
        concurrency=int(row["concurrency"]),
        longest_input=int(row["input_length"]),
        longest_output=int(row["output_length"]),
        shortest=_number(row, "shortest", 0.0, 1.0) if row["shortest"].strip() else 1.0,
        kind=row["kind"],
        tpot=_seconds(row, "tpot_ms"),
        ttft=_seconds(row, "ttft_ms") if row["ttft_ms"].strip() else None,
    )


def _prefill(row: Row) -> PrefillWorkers | None:
    if row["workers"] in ("", "0"):
        return None
    tensor, data = _count(row, "prefill_tensor"), _count(row, "prefill_data")
    return PrefillWorkers(
        workers=_count(row, "prefill_workers"),
        piece=served_slice(row["hardware"], tensor * data),
        tensor=tensor,
        data=data,
    )


def _dtype(row: Row, column: str) -> str:
    """A dtype of ours, whichever name of it a row has; "" where it is left to the engine."""
    name = row[column].strip().lower()
    name = DTYPES.get(name, name)
    if name and name not in (*DTYPE_BYTES, "fp16"):
        rule = f"it must be one of {', '.join((*DTYPE_BYTES, *DTYPES))}"
        raise WrongCell(column, row[column], rule, f"a dtype of '{column}' that is not known")
    return name


def _count(row: Row, column: str, least: int = 1) -> int:
    text = row[column].strip()
    if not re.fullmatch(r"\d{1,6}", text, re.ASCII) or int(text) < least:
        rule = f"it must be a whole number of at least {least}"
        raise WrongCell(column, row[column], rule, f"no number of '{column}'")
    return int(text)


def _seconds(row: Row, column: str) -> float:
    return _number(row, column, 1e-9, 1e15) * 1e-3


def _number(row: Row, column: str, least: float, most: float) -> float:
    try:
        return number(row[column].strip(), column, least=least, most=most)
    except BadRequest:
        rule = f"it must be a number of at least {least:g} and at most {most:g}"
        raise WrongCell(column, row[column], rule, f"no number of '{column}'") from None


def served_slice(hardware: str, devices: int) -> Slice:
    """The slice of a server: as few nodes of the chip as hold it; on a torus the most even box."""
    if _CAPPED in hardware:
        kind = "a power-capped chip, which the catalogue has not"
        raise WrongCell("hardware", hardware, kind, kind)
    try:
        chip = load_chip(hardware)
    except BadRequest:
        try:
            chip = load_chip(hardware.lower())
        except BadRequest:
            rule = "it must be a chip of the catalogue (`shardwise hw list`)"
            kind = "a chip that the catalogue has not"
            raise WrongCell("hardware", hardware, rule, kind) from None
    chips, rest = divmod(devices, chip.jax_devices_per_chip)
    try:
        if isinstance(chip.network, Torus):
            return next(p for p in slices_of(chip) if p.chips == chips and not rest)
        piece = parse_slice(f"{chip.id}:{chips}")
    except (BadRequest, StopIteration):
        kind = "a number of devices that is not a slice of the chip"
        raise WrongCell("tensor", devices, f"with data {kind}", kind) from None
    if piece.count > 1 and chip.data_centre is None:
        rule = f"{devices} devices need its data-centre network; give its rate with --hw FILE"
        kind = "more chips than one domain has, of a chip without a rate between domains"
        raise WrongCell("hardware", hardware, rule, kind)
    return piece


@cache
def served_model(name: str, weights: str) -> ModelConfig:
    """The zoo's model, with its linear layers stored in `weights`."""
    if name not in zoo_names():
        rule = "it must be a model of the zoo (`shardwise model list`)"
        raise WrongCell("model", name, rule, "a model that the zoo has not")
    return with_weights(load_model(name), weights)


def with_weights(cfg: ModelConfig, weights: str) -> ModelConfig:
    """The model as its quantized checkpoint stores it; see the head of this file."""
    if "mxfp4" in cfg.weight_dtypes.values():
        return cfg
    if weights in ("bf16", "fp16"):
        return replace(cfg, weight_dtypes={"": "bf16"})
    stored = {"fp4": "nvfp4"}.get(weights, weights)
    latent = any(isinstance(layer.mixer, LatentAttention) for layer in cfg.groups)
    kept = ("attention",) if stored == "nvfp4" and latent else ()
    dtypes = {component: stored for component in _LINEAR if component not in kept}
    dtypes |= dict.fromkeys(("attention.o",) if kept else (), stored)
    return replace(cfg, weight_dtypes={"": "bf16", **dtypes})


def _distinct(runs: Sequence[ServingRun]) -> tuple[list[ServingRun], int, int]:
    """One run per configuration; how many were copies, and how many rows contradict another."""
    kept, twice, apart = [], 0, 0
    for same in grouped(runs, lambda run: run.id).values():
        times = [r.tpot for r in same]
        if max(times) > _SAME * min(times):
            apart += len(same)
            continue
        kept.append(same[0])
        twice += len(same) - 1
    return kept, twice, apart
