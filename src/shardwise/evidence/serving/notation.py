"""Collected tables of serving measurements, one metric a row: their notation as explicit columns.

Columns: source, model, hardware, num_devices, parallelism, dtype_weights, dtype_kv,
batch_or_concurrency, input_len, output_len, metric, value, unit, notes. Parallelism is written in
one of these ways; a missing number counts as 1, a zero too:

- `TP8`;
- `tp4 pp1 adp2 moe_tp1 moe_ep8`: attention cut over 4 devices, twice; experts apart over 8. A
  table that multiplied the degrees says n x n devices where there are n (tp64 moe_tp8 moe_ep8 is
  tensor 8 with experts apart, tp1 adp64 moe_tp8 moe_ep8 and tp4 adp4 moe_ep16 are 8 and 4 parts of
  the batch);
- `disagg 1P(tp4,dp1)+2D(tp8,dp1)`: one server that prefills, two that decode. Without their
  numbers it is not a run.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from shardwise.boundary import number
from shardwise.errors import BadRequest
from shardwise.work import grouped

Row = Mapping[str, str]

COLUMNS = (
    *("source", "model", "hardware", "num_devices", "parallelism", "dtype_weights", "dtype_kv"),
    *("batch_or_concurrency", "input_len", "output_len", "metric", "value", "unit", "notes"),
)
"""Columns that a collected table has."""

_TPOT = {"tpot_mean": "served", "decode_step_median": "step"}
_TTFT = ("ttft_mean", "prefill_time_median")
_MODEL_NAMES = {
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "llama-3.3-70b": "llama-3.1-70b",
    "llama2-70b": "llama-2-70b",
}
"""Names of tables -> the zoo's model of the same shape."""


def configurations(rows: Iterable[Row]) -> tuple[list[dict[str, str]], dict[str, int]]:
    """Configurations with a time per output token in explicit columns, and how many rows are none,
    by reason."""
    found: list[dict[str, str]] = []
    left_out: dict[str, int] = {}
    for group in grouped(rows, configuration).values():
        try:
            found.append(explicit(group))
        except BadRequest as error:
            reason = str(error)
            left_out[reason] = left_out.get(reason, 0) + len(group)
    return found, left_out


def configuration(row: Row) -> tuple[str, ...]:
    """What rows of one configuration share."""
    mark = re.search(r"id=(\S+)", row["notes"])
    columns = [row[c] for c in COLUMNS[: COLUMNS.index("metric")]]
    return (*columns, mark.group(1) if mark else "")


def explicit(rows: Sequence[Row]) -> dict[str, str]:
    """The rows of one configuration as one row of explicit columns."""
    row = rows[0]
    times = {r["metric"]: milliseconds(r) for r in rows if r["metric"] in {*_TPOT, *_TTFT}}
    tpot = next((m for m in _TPOT if m in times), None)
    if tpot is None:
        raise BadRequest("no time per output token (throughput, phases or percentiles only)")
    engine, release = engine_of(row["source"])
    return {
        "source": row["source"],
        "citation": row.get("citation", ""),
        "engine": engine,
        "release": release,
        "queue_interval": "",
        "model": model_of(row["model"]),
        "hardware": row["hardware"],
        **degrees_of(row["parallelism"]),
        "drafts": "0",
        "weights": row["dtype_weights"],
        "kv": row["dtype_kv"],
        "concurrency": row["batch_or_concurrency"],
        "input_length": row["input_len"],
        "output_length": row["output_len"],
        "shortest": "1",
        "kind": _TPOT[tpot],
        "ttft_ms": next((times[m] for m in _TTFT if m in times), ""),
        "tpot_ms": times[tpot],
        "converted_from": "",
    }


def milliseconds(row: Row) -> str:
    """A time of a row in ms."""
    scales = {"ms": 1.0, "s": 1e3}
    if row["unit"] not in scales:
        raise BadRequest("a unit that is neither ms nor s")
    value = number(row["value"].strip(), "column 'value'", least=1e-9, most=1e15)
    return f"{value * scales[row['unit']]:.6g}"


def engine_of(source: str) -> tuple[str, str]:
    """Family and version of "aiconfigurator-silicon/vllm 0.19.0" and other spellings."""
    name = source.split("/")[-1]
    if name.startswith("Splitwise"):
        return "vllm-2023", ""
    family, _, version = name.partition(" ")
    return family, version.strip()


def model_of(name: str) -> str:
    """The zoo's name of a table's model."""
    short = re.sub(r"-(instruct|fp8|nvfp4|0528)\b", "", name.split("/")[-1].lower())
    return _MODEL_NAMES.get(short, short)


def kv_of(family: str, weights: str) -> str:
    """The cache's dtype where a row does not state it (`runs.py`)."""
    return "fp8" if family == "trtllm" and weights in ("fp8", "fp4") else "bf16"


def degrees_of(parallelism: str) -> dict[str, str]:
    """The columns of a deployment: `tensor`, `data`, `expert`, and the servers of either phase."""
    single = {"workers": "0", "prefill_workers": "", "prefill_tensor": "", "prefill_data": ""}
    if parallelism.startswith("disagg"):
        return _disaggregated(parallelism)
    tensor, data, expert = _aggregated(parallelism)
    return {"tensor": str(tensor), "data": str(data), "expert": str(expert), **single}


def _aggregated(parallelism: str) -> tuple[int, int, int]:
    plain = re.fullmatch(r"TP(\d{1,6})", parallelism)
    if plain:
        return int(plain.group(1)), 1, 1
    parts = re.fullmatch(
        r"tp(\d{1,6}) pp1 adp(\d{0,6}) moe_tp(\d{1,6}) moe_ep(\d{1,6})", parallelism
    )
    if parts is None:
        raise BadRequest("parallelism in another notation")
    tensor, data, cut, apart = (max(int(p or 1), 1) for p in parts.groups())
    if tensor * data == cut * apart and cut == apart > 1:
        return (1, apart, apart) if data > 1 else (apart, 1, apart)
    if tensor == data > 1 and apart == tensor * data:
        return 1, tensor, tensor
    if (cut, apart, data) == (1, 1, 1) or tensor * data == cut * apart:
        return tensor, data, apart
    raise BadRequest("degrees that contradict each other")


def _disaggregated(parallelism: str) -> dict[str, str]:
    pool = r"(\d+){}\(tp(\d+),dp(\d+)\)"
    parts = re.fullmatch(f"disagg {pool.format('P')}\\+{pool.format('D')}", parallelism)
    if parts is None:
        raise BadRequest("disaggregated, without the number of servers")
    names = ("prefill_workers", "prefill_tensor", "prefill_data", "workers", "tensor", "data")
    return {**dict(zip(names, parts.groups(), strict=True)), "expert": "1"}
