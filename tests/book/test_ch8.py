"""Chapter 8, serving LLaMA 3-70B: every entry through the public API with its own inputs."""

from math import ceil

import numpy as np
import pytest

from book.oracle import check, entry
from book.test_ch4 import model
from book.test_ch7 import chip_of, critical_batches, totals
from shardwise.book.rules.serving import (
    batch_of_step,
    cache_crossover,
    evicted_tokens,
    flops_per_dollar,
    generate_tensor_limit,
    largest_batch,
    prefill_servers,
    requests_per_second,
    step_seconds,
)
from shardwise.book.rules.training import tensor_limit
from shardwise.hardware import slices_of
from shardwise.hardware.totals import link_both_ways
from shardwise.models import kv_bytes_per_token, params_by_component
from shardwise.units import dtype_bytes

NO_FLOPS = {"params": 0.0, "peak": np.inf}
"""Of a step that only reads."""


def cache_of(i):
    """Bytes of one sequence's cache; the context is the entry's, in either spelling."""
    return np.asarray(i.get("context", i.get("S"))) * kv_bytes_per_token(model(i), i["dtype"])


def weights(i):
    """The book's parameters in the entry's dtype."""
    return i["params"] * dtype_bytes(i["dtype"])


def seconds(i, batch):
    _, bandwidth, peak = totals(i)
    return step_seconds(
        np.asarray(batch),
        param_bytes=weights(i),
        kv_bytes=cache_of(i),
        bandwidth=bandwidth,
        params=i["params"],
        peak=peak,
    )


def whole(numbers):
    return [int(n) for n in np.atleast_1d(numbers)]


@entry("table.8.cost.v5p")
def test_flops_per_dollar(e):
    i = e["inputs"]
    check(e, flops_per_dollar(i["flops"], i["usd_per_hour"]))


@entry("8.kv_token")
def test_cache_of_a_token(e):
    i = e["inputs"]
    check(e, int(kv_bytes_per_token(model(i), i["dtype"])))


@entry("8.mem_bs32")
def test_memory_of_32_sequences(e):
    i = e["inputs"]
    caches = i["B"] * cache_of(i)
    total = caches + weights(i)
    check(e, [int(caches), total, ceil(total / i["hbm"])])


@entry("8.step_4x2")
def test_step_on_8_chips(e):
    i = e["inputs"]
    step = seconds(i, i["B"])
    check(e, [step, i["B"] / step, i["B"] / step / i["chips"]])


@entry("8.step_4x4")
def test_step_on_16_chips(e):
    check(e, seconds(e["inputs"], e["inputs"]["B"]))


@entry("8.bcrit")
def test_critical_batches(e):
    check(e, critical_batches(e["inputs"]))


def smallest(i):
    """A row of the table: what the weights need and what is left for caches."""
    chip = chip_of(i)
    need = weights(i) / chip.require("hbm_bytes")
    chips = next(p.chips for p in slices_of(chip) if p.chips >= need)
    hbm = chips * chip.require("hbm_bytes")
    token = kv_bytes_per_token(model(i), i["dtype"])
    fitting = int(largest_batch(hbm, weights(i), cache_of(i)))
    token = int(token) if i["dtype"] == "int8" else token
    return [weights(i), token, need, chips, hbm - weights(i), fitting]


@entry("table.8.min.int8")
def test_smallest_slice_in_int8(e):
    check(e, smallest(e["inputs"]))


@entry("table.8.min.int4")
def test_smallest_slice_in_int4(e):
    check(e, smallest(e["inputs"]))


@entry("8.step_full")
def test_a_step_over_full_memory(e):
    """All that a chip holds, a whole answer of such steps, and the int4 weights alone."""
    i = e["inputs"]
    chip = chip_of(i)
    bandwidth = chip.require("hbm_bandwidth")
    full = step_seconds(
        1, param_bytes=chip.require("hbm_bytes"), kv_bytes=0.0, bandwidth=bandwidth, **NO_FLOPS
    )
    alone = step_seconds(
        1, param_bytes=weights(i), kv_bytes=0.0, bandwidth=i["chips"] * bandwidth, **NO_FLOPS
    )
    check(e, [full, full * i["answer"], alone])


def queries(i):
    return requests_per_second(i["B"], i["step"], i["decode"]) / i["chips"]


@entry("table.8.qps.int8")
def test_queries_in_int8(e):
    check(e, queries(e["inputs"]))


@entry("table.8.qps.int4")
def test_queries_in_int4(e):
    check(e, queries(e["inputs"]))


@entry("table.8.qps2x.bf16")
def test_queries_on_twice_the_chips_in_bf16(e):
    check(e, queries(e["inputs"]))


@entry("table.8.qps2x.int8")
def test_queries_on_twice_the_chips_in_int8(e):
    check(e, queries(e["inputs"]))


@entry("table.8.qps2x.int4")
def test_queries_on_twice_the_chips_in_int4(e):
    check(e, queries(e["inputs"]))


@entry("8.double_bf16")
def test_twice_the_chips(e):
    i = e["inputs"]
    hbm, _, _ = totals(i)
    batch = int(largest_batch(hbm, weights(i), cache_of(i)))
    check(e, [hbm - weights(i), batch, requests_per_second(batch, i["step"], i["decode"])])


@entry("8.gen_tp")
def test_tensor_limits(e):
    """By FLOPs over two axes, and by HBM with the book's stale ratio and with its table's."""
    i = e["inputs"]
    chip = chip_of(i)
    alpha = chip.peak("bf16") / link_both_ways(chip)
    beta = chip.require("hbm_bandwidth") / link_both_ways(chip)
    by_flops = tensor_limit(alpha, i["F"], i["axes"])
    check(e, [by_flops, *(generate_tensor_limit(i["F"], i["B"], b) for b in (i["beta"], beta))])


@entry("8.evict")
def test_eviction(e):
    i = e["inputs"]
    finished = requests_per_second(i["B"], 1.0, i["G"])
    check(e, [finished, evicted_tokens(i["B"], i["P"], i["G"])])


@entry("8.pd_ratio")
def test_prefill_servers(e):
    i = e["inputs"]
    check(e, [prefill_servers(i["prefill"], b, i["step"], i["decode"]) for b in i["B"]])


def pareto(i):
    """Latency, and tokens per millisecond and chip, at the entry's batches."""
    latency = seconds(i, i["B"])
    return [*latency, *(np.array(i["B"]) / latency / 1e3 / i["chips"])]


@entry("fig.8.pareto.2k")
def test_pareto_of_short_contexts(e):
    check(e, pareto(e["inputs"]))


@entry("fig.8.pareto.64k")
def test_pareto_of_long_contexts(e):
    check(e, pareto(e["inputs"]))


@entry("fig.8.pareto.maxB")
def test_largest_batches_of_the_widget(e):
    """Its batches end at 511."""
    i = e["inputs"]
    fitting = largest_batch(i["hbm"], weights(i), cache_of(i))
    check(e, whole(np.minimum(fitting, i["most"])))


@entry("fig.8.cost_reduction")
def test_cost_at_twice_the_latency(e):
    """Cost per token is chips x latency / batch; both latencies cancel but for the factor 2."""
    i = e["inputs"]
    _, bandwidth, peak = totals(i)
    alone = seconds(i, 1)
    batch = batch_of_step(
        2 * alone, kv_bytes=cache_of(i), bandwidth=bandwidth, params=i["params"], peak=peak
    )
    assert seconds(i, batch) == pytest.approx(2 * alone, rel=1e-12)
    check(e, batch / 2)


@entry("fig.8.kv_vs_flops")
def test_where_caches_outweigh_math(e):
    i = e["inputs"]
    chip = chip_of(i)
    token = kv_bytes_per_token(model(i), i["dtype"])
    crossing = cache_crossover(i["params"], token, chip.peak("bf16"), chip.require("hbm_bandwidth"))
    check(e, crossing)


@entry("code.8.max_batch")
def test_the_books_code(e):
    """The true maximum, and as its code finds it once the index is taken for what it is: the last
    of every `step`-th batch that fits, then up to the next."""
    i = e["inputs"]
    batches = np.arange(1, i["most"] + 1)
    fits = batches * cache_of(i) + weights(i) <= i["hbm"]
    fitting = largest_batch(i["hbm"], weights(i), cache_of(i))
    assert np.flatnonzero(fits[:: i["step"]])[-1] == e["book_value"][0]
    check(e, [int(batches[fits][-1]), int(fitting)])


@entry("8.1")
def test_405b(e):
    """FLOPs of all parameters but the norms, and the times of one chip."""
    i = e["inputs"]
    chip = chip_of(i)
    params = sum(n for part, n in params_by_component(model(i)).items() if part != "norm")
    flops, bandwidth = 2 * params, chip.require("hbm_bandwidth")
    loads = [params * dtype_bytes(dtype) / bandwidth for dtype in ("int8", "bf16")]
    check(e, [flops, flops / chip.peak("bf16"), *loads])
