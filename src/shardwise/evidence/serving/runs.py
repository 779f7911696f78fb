"""Published serving measurements: rows of a table -> runs that a plan can express.

The table has one metric of one configuration a row, or as the package ships it (`wide_rows`) one
configuration. Kept are runs cut over tensor alone, of a model in the zoo, on a chip of the
catalogue, at a fixed concurrency and fixed lengths, with a time per output token; every other row
has a reason and is counted. What rows leave open:

- `dtype_kv` empty: what the engine takes by default. TensorRT-LLM keeps the cache in fp8 where the
  checkpoint is quantized (`kv_cache_quant_algo`), vLLM and SGLang in bf16 ("auto").
- fp8 and fp4 weights name the linear layers; embeddings, router and head stay bf16. An fp4 model
  with latent attention keeps its attention in bf16 (nvidia/DeepSeek-R1-FP4), and gpt-oss is what
  its checkpoint says, whatever the row calls it.
- A configuration published twice with the same figures is one run; one published with times more
  than 5 % apart differs in something that no column names (speculation), so both are left out.
- Whether a row ran with speculation is otherwise not stated; it is taken as without.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from shardwise import boundary
from shardwise.boundary import number, whole
from shardwise.errors import BadRequest, ShardwiseError
from shardwise.hardware import Slice, Torus, parse_slice, slices_of
from shardwise.hardware.catalogue import load_chip
from shardwise.models import ModelConfig, load_model
from shardwise.models.specs import LatentAttention
from shardwise.models.zoo import zoo_names
from shardwise.planner.serve.server import heads_divide
from shardwise.work import grouped

Row = Mapping[str, str]

COLUMNS = (
    *("source", "model", "hardware", "num_devices", "parallelism", "dtype_weights", "dtype_kv"),
    *("batch_or_concurrency", "input_len", "output_len", "metric", "value", "unit", "notes"),
)
"""Columns that a table of serving measurements has."""

WIDE = ("ttft_ms", "tpot_ms")
"""Columns of a table with one configuration a row, in place of metric, value and unit."""

PUBLISHED_SERVING = Path(__file__).parent / "data" / "serving_runs.csv"
"""The runs that the filter keeps of tables published by ai-dynamo/aiconfigurator and
sgl-project/sglang-jax (Apache-2.0) and Mutinifni/splitwise-sim (MIT), each with its citation;
scripts/fit_serving.py writes it."""

_TPOT = {"tpot_mean": "served", "decode_step_median": "step"}
_TTFT = ("ttft_mean", "prefill_time_median")
_SAME = 1.05
_CAPPED = "pcap"
_MODEL_NAMES = {
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "llama-3.3-70b": "llama-3.1-70b",
    "llama2-70b": "llama-2-70b",
}
"""Names of tables -> the zoo's model of the same shape."""
_LINEAR = ("attention", "linear_attention", "mlp_dense", "routed_experts", "shared_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """One measured configuration. Seconds; `kind` is "served" (a closed loop of `concurrency`
    requests, times averaged over requests) or "step" (one batch prefilled at once, then decoded).
    `release` orders the versions of a family; () where the version is not a release."""

    source: str
    family: str
    version: str
    release: tuple[int, ...]
    model: str
    cfg: ModelConfig
    piece: Slice
    tensor: int
    weights: str
    kv: str
    concurrency: int
    input_length: int
    output_length: int
    kind: str
    tpot: float
    ttft: float | None

    @property
    def chip(self) -> str:
        return self.piece.chip.id

    @property
    def engine(self) -> str:
        """Family and version."""
        return f"{self.family} {self.version}".strip()

    @property
    def id(self) -> str:
        """What tells a run from all others."""
        lengths = f"{self.input_length}x{self.output_length}"
        return (
            f"{self.engine}/{self.model}/{self.weights}/{self.chip}:{self.tensor}/{lengths}/"
            f"c{self.concurrency}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingTable:
    """The runs of a table and why how many rows are not among them."""

    rows: int
    runs: tuple[ServingRun, ...]
    left_out: Mapping[str, int]


def read_serving(path: Path) -> ServingTable:
    """The runs of a CSV table. Raises BadRequest where it cannot be read, lacks a column, or has a
    time that no run can have: such a table is damaged."""
    table = boundary.read_table(path, "the table", remedy="give a CSV file")
    is_wide = all(column in table.columns for column in WIDE)
    boundary.check_columns(table, [c for c in COLUMNS if c not in ("value", "unit") or not is_wide])
    for index, row in enumerate(table.rows):
        try:
            for column in WIDE if is_wide else ("value",):
                if row[column].strip() or not is_wide:
                    number(row[column].strip(), column, least=1e-9, most=1e15)
        except BadRequest as error:
            raise BadRequest(f"{table.at(index)}: {error}") from None
    if is_wide:
        return serving_runs([row for wide in table.rows for row in _long(wide)])
    return serving_runs(table.rows)


def serving_runs(rows: Sequence[Row]) -> ServingTable:
    """Rows as runs, one per configuration, and the reasons for the others."""
    left_out: dict[str, int] = {}
    runs: list[ServingRun] = []
    for group in _configurations(rows):
        try:
            runs.append(_run(group))
        except ShardwiseError as error:
            reason = str(error)
            left_out[reason] = left_out.get(reason, 0) + len(group)
    kept, twice, apart = _distinct(runs)
    for reason, rows_out in (
        ("the same configuration and times are there already", twice),
        ("two runs of one configuration more than 5 % apart: a column is missing", apart),
    ):
        if rows_out:
            left_out[reason] = rows_out
    return ServingTable(rows=len(rows), runs=tuple(kept), left_out=left_out)


def wide_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    """The rows behind the runs, one per configuration: what the package ships."""
    wanted = {run.id for run in serving_runs(rows).runs}
    kept: dict[str, dict[str, str]] = {}
    for group in _configurations(rows):
        try:
            run = _run(group)
        except ShardwiseError:
            continue
        if run.id in wanted and run.id not in kept:
            shared = {c: group[0][c] for c in COLUMNS[: COLUMNS.index("metric")]}
            metric = next(m for m in _TPOT if any(r["metric"] == m for r in group))
            times = {"tpot_ms": f"{run.tpot * 1e3:.6g}"}
            times["ttft_ms"] = "" if run.ttft is None else f"{run.ttft * 1e3:.6g}"
            said = {"metric": metric, "notes": "", "citation": group[0].get("citation", "")}
            kept[run.id] = {**shared, **times, **said}
    return list(kept.values())


def _long(row: Row) -> list[Row]:
    """A row of `wide_rows` as one row per metric."""
    first = {"tpot_mean": "ttft_mean", "decode_step_median": "prefill_time_median"}
    pairs = ((row["metric"], row["tpot_ms"]), (first.get(row["metric"], ""), row["ttft_ms"]))
    found: list[Row] = [
        {**row, "metric": m, "value": v, "unit": "ms"} for m, v in pairs if v.strip() and m
    ]
    return found or [{**row, "value": "", "unit": "ms"}]


def newest(runs: Iterable[ServingRun]) -> dict[tuple[str, str, str], tuple[int, ...]]:
    """The newest release of a family that ran a model on a chip; the runs that gate have it."""
    found: dict[tuple[str, str, str], tuple[int, ...]] = {}
    for run in runs:
        key = run.family, run.chip, run.cfg.name
        found[key] = max(found.get(key, ()), run.release)
    return found


def gating(runs: Sequence[ServingRun]) -> tuple[ServingRun, ...]:
    """The runs of the newest release of each family, per model and chip."""
    best = newest(runs)
    return tuple(r for r in runs if r.release == best[r.family, r.chip, r.cfg.name])


def _configurations(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows of one configuration: all its metrics."""

    def configuration(row: Row) -> tuple[str, ...]:
        mark = re.search(r"id=(\S+)", row["notes"])
        columns = [row[c] for c in COLUMNS[: COLUMNS.index("metric")]]
        return (*columns, mark.group(1) if mark else "")

    return list(grouped(rows, configuration).values())


def _run(rows: Sequence[Row]) -> ServingRun:
    """One configuration. The message of the BadRequest is a reason shared by many rows."""
    row = rows[0]
    timed = [r for r in rows if r["metric"] in {*_TPOT, *_TTFT} and r["value"]]
    values = {r["metric"]: _seconds(r) for r in timed}
    tpot = next((m for m in _TPOT if m in values), None)
    if tpot is None:
        raise BadRequest("no time per output token (throughput, phases or percentiles only)")
    tensor = tensor_of(row["parallelism"])
    model, cfg = served_model(row["model"], row["dtype_weights"])
    piece = served_slice(row["hardware"], row["num_devices"])
    if tensor != piece.devices:
        raise BadRequest("a tensor degree that is not the number of devices")
    if not heads_divide(cfg, tensor):
        raise BadRequest("a tensor degree that does not divide the model's heads")
    concurrency, lengths = row["batch_or_concurrency"], (row["input_len"], row["output_len"])
    if not all(re.fullmatch(r"0*[1-9]\d{0,8}", text, re.ASCII) for text in (concurrency, *lengths)):
        raise BadRequest("no fixed concurrency or no fixed lengths")
    family, version = engine_of(row["source"])
    kv = row["dtype_kv"] or kv_of(family, row["dtype_weights"])
    return ServingRun(
        source=row["source"].split("/")[0],
        family=family,
        version=version,
        release=release_of(version),
        model=model,
        cfg=cfg,
        piece=piece,
        tensor=tensor,
        weights=row["dtype_weights"],
        kv={"fp16": "f16"}.get(kv, kv),
        concurrency=int(concurrency),
        input_length=int(lengths[0]),
        output_length=int(lengths[1]),
        kind=_TPOT[tpot],
        tpot=values[tpot],
        ttft=next((values[m] for m in _TTFT if m in values), None),
    )


def _seconds(row: Row) -> float:
    scales = {"ms": 1e-3, "s": 1.0}
    if row["unit"] not in scales:
        raise BadRequest("a unit that is neither ms nor s")
    return number(row["value"].strip(), "value", least=1e-9, most=1e15) * scales[row["unit"]]


def tensor_of(parallelism: str) -> int:
    """The tensor degree of "TP8" or of "tp8 pp1 adp1 moe_tp8 moe_ep1"; BadRequest with others."""
    plain = re.fullmatch(r"TP(\d{1,6})", parallelism)
    if plain:
        return int(plain.group(1))
    parts = re.fullmatch(
        r"tp(\d{1,6}) pp1 adp(\d{0,6}) moe_tp(\d{1,6}) moe_ep(\d{1,6})", parallelism
    )
    if parts is None:
        raise BadRequest("not tensor alone: disaggregated, or another notation")
    tensor, data, expert_tensor, expert = (int(p or 1) for p in parts.groups())
    # A dense model has no expert degrees; tables then say 0 or 1.
    if data > 1 or expert > 1 or expert_tensor not in (0, 1, tensor):
        raise BadRequest("not tensor alone: attention data parallel or expert parallel")
    return tensor


def engine_of(source: str) -> tuple[str, str]:
    """Family and version of "aiconfigurator-silicon/vllm 0.19.0" and other spellings."""
    name = source.split("/")[-1]
    if name.startswith("Splitwise"):
        # Its first year: no CUDA graphs, scheduling and sampling in Python between the steps.
        return "vllm-2023", ""
    family, _, version = name.partition(" ")
    return family, version.strip()


def kv_of(family: str, weights: str) -> str:
    """The cache's dtype where a row does not state it: see the head of this file."""
    return "fp8" if family == "trtllm" and weights in ("fp8", "fp4") else "bf16"


def release_of(version: str) -> tuple[int, ...]:
    """A version as numbers that compare: (1, 2, 0, 6, 3) for 1.2.0rc6.post3, with a final release
    above its candidates; () for a name, a nightly build, a year, or none."""
    n = r"\d{1,9}"
    match = re.fullmatch(rf"({n})\.({n})\.({n})(?:-?rc({n}))?(?:\.(?:post|pre)({n}))?", version)
    if match is None:
        return ()
    major, minor, patch, candidate, post = match.groups()
    return (int(major), int(minor), int(patch), int(candidate or 99), int(post or 0))


def served_slice(hardware: str, devices: str) -> Slice:
    """The slice of a row: one node of the chip, or part of it; on a torus the most even box."""
    if _CAPPED in hardware:
        raise BadRequest("a power-capped chip, which the catalogue has not")
    try:
        chip = load_chip(hardware)
    except BadRequest:
        try:
            chip = load_chip(hardware.lower())
        except BadRequest:
            raise BadRequest("a chip that the catalogue has not") from None
    try:
        if isinstance(chip.network, Torus):
            wanted = whole(devices, "num_devices", least=1)
            return next(p for p in slices_of(chip) if p.chips == wanted)
        return parse_slice(f"{chip.id}:{devices}")
    except (BadRequest, StopIteration):
        raise BadRequest("a number of devices that is no slice of the chip") from None


@cache
def served_model(name: str, weights: str) -> tuple[str, ModelConfig]:
    """The zoo's model by a table's name, with its linear layers stored in `weights`."""
    short = name.split("/")[-1].lower()
    short = re.sub(r"-(instruct|fp8|nvfp4|0528)\b", "", short)
    short = _MODEL_NAMES.get(short, short)
    if short not in zoo_names():
        raise BadRequest("a model that the zoo has not")
    return short, with_weights(load_model(short), weights)


def with_weights(cfg: ModelConfig, weights: str) -> ModelConfig:
    """The model as its quantized checkpoint stores it; see the head of this file."""
    if weights in ("bf16", "fp16") or "mxfp4" in cfg.weight_dtypes.values():
        return cfg
    stored = {"fp4": "nvfp4"}.get(weights, weights)
    latent = any(isinstance(layer.mixer, LatentAttention) for layer in cfg.groups)
    kept = ("attention",) if stored == "nvfp4" and latent else ()
    dtypes = {component: stored for component in _LINEAR if component not in kept}
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
