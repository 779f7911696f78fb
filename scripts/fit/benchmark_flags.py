"""What the public scripts of two benchmarks tell an engine, as columns of a row of serving runs.

- SemiAnalysisAI/InferenceX, benchmarks/*.sh and benchmarks/single_node/*.sh of every day (single
  servers), and ten requests for each in flight (`--num-prompts $((CONC * 10))`), all of which start
  at once (`--request-rate inf`). Two for each in flight come before them, unmeasured, from
  `WARM_DAY` on (`--num-warmups`).
- ai-dynamo/aiconfigurator, the tool's own runs of requests of equal lengths: twenty for each in
  flight (bench_run.sh.j2, `BENCH_MULTI_ROUND`).
"""

import re
from collections.abc import Mapping

Row = Mapping[str, str]

WARM_DAY = "2026-01-21"
"""From this day on the benchmark sends requests before those that it measures (d053ae24e)."""
_FLOOR_DAY = "2026-01-21"
"""From this day on TensorRT-LLM's scripts for DeepSeek take at least 8,192 tokens (64af5a771)."""
_DELAY_DAY = "2026-01-29"
"""From this day on one of them holds prompts back (ec7bafaae)."""
_TWICE = {"minimax-m2.5": "2026-04-03", "kimi-k2.5": "2026-04-20"}
"""Days from which vLLM's scripts take twice the longest prompt (bddbf4031, 6c3acebfa), by model."""
_SMALL_SERVER_DAY = "2026-01-13"
"""From this day on SGLang's script for DeepSeek in fp8 knows four devices (1d29967c4)."""


def benchmark_columns(row: Row, origin: str, benchmark: bool) -> dict[str, str]:
    """`waves`, `held_steps`, `cold` and `max_num_batched_tokens`; "" where nothing is told."""
    found = re.search(r"measured=(\d{4}-\d\d-\d\d)", origin)
    day = found.group(1) if found else ""
    alone = benchmark and row["workers"] in ("", "0")
    budget = _budget(row, day) if alone else 0
    held = _held_steps(row, day) if alone else 0
    return {
        "waves": "10" if benchmark else "20" if "aic-auto-gap" in origin else "",
        "held_steps": str(held) if held else "",
        "cold": "1" if benchmark and day and day < WARM_DAY else "",
        "max_num_batched_tokens": str(budget) if budget else "",
    }


def _budget(row: Row, day: str) -> int:
    engine = {"trtllm": _trtllm_budget, "sglang": _sglang_budget, "vllm": _vllm_budget}
    return engine[row["engine"]](row, day) if row["engine"] in engine else 0


def _trtllm_budget(row: Row, day: str) -> int:
    """`--max_num_tokens`. Where guesses are checked, of the sequences of a device."""
    fixed = {"llama-3.1-70b": 16384, "gpt-oss-120b": 20000}
    if row["model"] in fixed:
        return fixed[row["model"]]
    if row["model"] != "deepseek-v3":
        return 0
    sequences, drafts = int(row["concurrency"]), int(row["drafts"] or 0)
    if drafts and int(row["data"]) > 1:
        sequences = max(sequences // 8, 1)
    told = _whole((drafts + 1) * sequences + int(row["input_length"]) + 64, 64)
    return told if drafts or day < _FLOOR_DAY else max(told, 8192)


def _sglang_budget(row: Row, day: str) -> int:
    """`--chunked-prefill-size`; where none is given, SGLang's own by the memory of the chip."""
    hopper = row["hardware"].startswith("h")
    model, weights = row["model"], row["weights"]
    if model == "deepseek-v3":
        if row["drafts"] not in ("", "0") or weights == "fp4":
            return 16384
        small = row["tensor"] == "4" and day >= _SMALL_SERVER_DAY
        return 8192 if small else 32768
    if model == "glm-5":
        return 8192 if hopper else 32768
    if model == "qwen3.5-397b-a17b":
        lower = hopper or (weights == "fp8" and row["hardware"].startswith("b300"))
        return 16384 if lower else 32768
    return 0


def _vllm_budget(row: Row, day: str) -> int:
    """`--max-num-batched-tokens`, on Blackwell; elsewhere 8,192 is told or vLLM's own."""
    since = _TWICE.get(row["model"])
    told = since is not None and day >= since and row["hardware"].startswith("b")
    return 2 * int(row["input_length"]) if told else 0


def _held_steps(row: Row, day: str) -> int:
    """`batch_wait_timeout_iters` of TensorRT-LLM: steps that it waits for more prompts."""
    lengths = row["input_length"], row["output_length"]
    if row["engine"] != "trtllm" or lengths != ("1024", "1024"):
        return 0
    if row["model"] == "llama-3.1-70b":
        return 20 if int(row["tensor"]) < 8 else 0
    delayed = row["model"] == "deepseek-v3" and row["weights"] == "fp8" and day >= _DELAY_DAY
    blackwell = row["hardware"].startswith("b200") and row["drafts"] in ("", "0")
    return 40 if delayed and blackwell and int(row["concurrency"]) >= 64 else 0


def _whole(tokens: int, block: int) -> int:
    """Rounded as the scripts round: up to the next block."""
    return (tokens + block - 1) // block * block
