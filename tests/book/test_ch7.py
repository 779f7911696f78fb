"""Chapter 7, inference: every entry through the public API with the entry's own inputs."""

from dataclasses import replace

import numpy as np

from book.oracle import check, entry
from book.test_ch4 import model
from shardwise.book.rules.serving import (
    largest_batch,
    latency_bound_bytes,
    latency_bound_degree,
    prefill_left,
    speculated_tokens,
    step_seconds,
    weight_stationary_chips,
    weight_stationary_coefficient,
)
from shardwise.book.rules.training import moe_limit, tensor_limit
from shardwise.hardware import load_chip, slices_of
from shardwise.hardware.totals import Totals, link_both_ways
from shardwise.models import (
    kv_bytes,
    kv_bytes_per_token,
    params_active,
    params_by_component,
    params_total,
    weight_bytes,
)
from shardwise.models.specs import Moe
from shardwise.models.training_state import training_state
from shardwise.roofline import ElementBytes
from shardwise.roofline.chip_roofline import chip_critical_intensity
from shardwise.roofline.matmul import critical_batch_approx
from shardwise.units import dtype_bytes

NO_FLOPS = {"params": 0.0, "peak": np.inf}
"""Of a step that only reads."""
WEIGHTS_AND_MATH = (("bf16", "bf16"), ("int8", "bf16"), ("int8", "int8"))
"""Dtypes of stored weights and of the matmuls."""


def chip_of(i):
    return load_chip(i["chip"], constants="book")


def totals(i):
    """The entry's chips: HBM bytes, HBM bytes/s, bf16 FLOP/s."""
    chip = chip_of(i)
    both = Totals(chip=chip, chips=i["chips"])
    return both.hbm_bytes, i["chips"] * chip.require("hbm_bandwidth"), both.flops("bf16")


def critical_batches(i):
    """Tokens at which each pair of dtypes becomes bound by FLOPs."""
    return [
        critical_batch_approx(
            elements=ElementBytes.of(left="bf16", right=stored, result="bf16"),
            intensity=chip_critical_intensity(chip_of(i), dtype=computed),
        )
        for stored, computed in WEIGHTS_AND_MATH
    ]


def moe(i):
    """The entry's model with k of E copies of its MLP; the book counts no router."""
    cfg = model(i)
    layer = cfg.groups[0]
    experts = Moe(
        experts=i["E"], experts_per_token=i["k"], d_ff=layer.mlp.d_ff, gated=layer.mlp.gated
    )
    return replace(cfg, groups=(replace(layer, mlp=experts),))


def without_router(cfg):
    by = params_by_component(cfg)
    return params_total(cfg) - by["router"], params_active(cfg) - by["router"]


@entry("rule.7.bcrit")
def test_critical_batches(e):
    check(e, critical_batches(e["inputs"]))


def pop_quiz(i):
    _, bandwidth, peak = totals(i)
    return step_seconds(
        i["B"],
        param_bytes=i["params"] * dtype_bytes(i["dtype"]),
        kv_bytes=i["context"] * i["kv_per_token"],
        bandwidth=bandwidth,
        params=i["params"],
        peak=peak,
    )


@entry("pop.7.1")
def test_a_small_batch_is_bound_by_memory(e):
    check(e, pop_quiz(e["inputs"]))


@entry("pop.7.2")
def test_a_large_batch_is_bound_by_math(e):
    check(e, pop_quiz(e["inputs"]))


@entry("table.7.params")
def test_parameters_of_13b(e):
    cfg = model(e["inputs"])
    by = params_by_component(cfg)
    vocabulary = by["embedding"] + by["lm_head"]
    check(e, [by["mlp_dense"], vocabulary, by["attention"], params_total(cfg)])


@entry("head.7.train_mem")
def test_memory_of_training(e):
    i = e["inputs"]
    state = training_state(param=i["param"], moments=i["moments"])
    check(e, int((state * params_total(model(i))).total))


@entry("head.7.act")
def test_one_activation(e):
    i = e["inputs"]
    check(e, int(i["tokens"] * i["D"] * dtype_bytes(i["dtype"])))


@entry("head.7.kv13b")
def test_cache_of_a_sequence(e):
    i = e["inputs"]
    check(e, int(kv_bytes(model(i), i["tokens"], i["dtype"])))


def steps(i):
    """Seconds of the tables' steps, by their bandwidth alone."""
    return step_seconds(
        np.array(i["batch"]),
        param_bytes=i["param_bytes"],
        kv_bytes=i["kv_seq"] / i.get("smaller", 1),
        bandwidth=i["bw"],
        **NO_FLOPS,
    )


@entry("table.7.mha.kv")
def test_caches_of_a_batch(e):
    """One second at one byte/s per byte: the caches are what a step without weights loads."""
    i = e["inputs"]
    check(e, steps({**i, "param_bytes": 0.0, "bw": 1.0}))


@entry("table.7.mha.step")
def test_steps_of_multi_head_attention(e):
    check(e, steps(e["inputs"]))


@entry("table.7.mha.tput")
def test_tokens_per_second_of_multi_head_attention(e):
    i = e["inputs"]
    check(e, np.array(i["batch"]) / steps(i))


@entry("table.7.gqa5.mem")
def test_memory_of_grouped_queries(e):
    check(e, steps({**e["inputs"], "bw": 1.0}))


@entry("table.7.gqa5.tput")
def test_tokens_per_second_of_grouped_queries(e):
    i = e["inputs"]
    check(e, np.array(i["batch"]) / steps(i))


@entry("table.7.slice")
def test_eight_chips(e):
    check(e, totals(e["inputs"]))


@entry("table.7.oom")
def test_where_memory_ends(e):
    i = e["inputs"]
    hbm = i["chips"] * np.array(i["hbm"])
    check(e, [int(b) for b in largest_batch(hbm, i["param_bytes"], i["kv_seq"])])


@entry("rule.7.tp_prefill")
def test_tensor_parallel_prefill(e):
    i = e["inputs"]
    chip = chip_of(i)
    check(e, tensor_limit(chip.peak("bf16") / link_both_ways(chip), i["F"]))


# The exercises --------------------------------------------------------------------------------


@entry("7.1")
def test_parameters_and_cache(e):
    i = e["inputs"]
    cfg = model(i)
    check(e, [params_total(cfg), int(kv_bytes_per_token(cfg, i["dtype"]))])


def most_sequences(i, cached):
    cfg = model(i)
    hbm, _, _ = totals(i)
    cache = kv_bytes(model(cached), i["tokens"], i["dtype"])
    return int(largest_batch(hbm, weight_bytes(cfg, i["dtype"]), cache))


@entry("7.2.k8")
def test_largest_batch(e):
    check(e, most_sequences(e["inputs"], e["inputs"]))


@entry("7.2.k1")
def test_largest_batch_with_one_kv_head(e):
    """The weights as before: the book leaves the smaller projections out."""
    i = e["inputs"]
    check(e, most_sequences(i, {**i, "K": i["fewer_K"]}))


@entry("7.3")
def test_loading_the_weights(e):
    i = e["inputs"]
    _, bandwidth, _ = totals(i)
    loaded = weight_bytes(model(i), i["dtype"])
    check(e, step_seconds(1, param_bytes=loaded, kv_bytes=0.0, bandwidth=bandwidth, **NO_FLOPS))


@entry("7.5.1")
def test_parameters_of_the_experts(e):
    check(e, without_router(moe(e["inputs"])))


@entry("7.5.2")
def test_critical_batch_of_the_experts(e):
    i = e["inputs"]
    check(e, moe_limit(critical_batches(i)[0], i["E"], i["k"]))


@entry("7.5.3")
def test_cache_of_the_experts(e):
    i = e["inputs"]
    check(e, int(kv_bytes_per_token(moe(i), i["dtype"])))


@entry("7.6.1")
def test_experts_on_128_chips(e):
    """Everything cut 128 ways, and with all but the experts cut over Y alone."""
    i = e["inputs"]
    cfg, chip = moe(i), chip_of(i)
    size = dtype_bytes(i["dtype"])
    total, _ = without_router(cfg)
    experts = params_by_component(cfg)["routed_experts"]
    devices = i["Y"] * i["Z"]
    held = [total / devices * size, (experts / devices + (total - experts) / i["Y"]) * size]
    found = []
    for bytes_ in held:
        seconds = step_seconds(
            1, param_bytes=bytes_, kv_bytes=0.0, bandwidth=chip.require("hbm_bandwidth"), **NO_FLOPS
        )
        found += [seconds, chip.require("hbm_bytes") - bytes_]
    check(e, found)


@entry("7.6.2")
def test_smallest_slices(e):
    i = e["inputs"]
    chip, (total, _) = chip_of(i), without_router(moe(i))
    found = []
    for dtype in i["dtypes"]:
        need = total * dtype_bytes(dtype)
        chips = (p.chips for p in slices_of(chip) if p.chips * chip.require("hbm_bytes") >= need)
        found.append(next(chips))
    check(e, found)


@entry("7.7.comms")
def test_two_dimensional_communication(e):
    check(e, weight_stationary_coefficient(e["inputs"]["F_over_D"]))


@entry("7.7.crit")
def test_where_two_dimensions_win(e):
    check(e, [weight_stationary_chips(r) for r in e["inputs"]["F_over_D"]])


# The appendices -------------------------------------------------------------------------------


@entry("head.7.appA")
def test_least_time_of_a_layer(e):
    i = e["inputs"]
    _, bandwidth, _ = totals(i)
    loaded = i["params"] * dtype_bytes(i["dtype"])
    check(e, step_seconds(1, param_bytes=loaded, kv_bytes=0.0, bandwidth=bandwidth, **NO_FLOPS))


def activations(i):
    return i["B"] * i["D"] * dtype_bytes(i["dtype"])


@entry("head.7.appC.buffer")
def test_buffers_bound_by_latency(e):
    i = e["inputs"]
    oneway = chip_of(i).network.link_oneway
    check(e, [latency_bound_bytes(i["shards"], oneway), int(activations(i))])


@entry("head.7.appC.rule")
def test_degree_bound_by_latency(e):
    i = e["inputs"]
    check(e, latency_bound_degree(activations(i), chip_of(i).network.link_oneway))


@entry("head.7.prefix")
def test_prefix_hits(e):
    i = e["inputs"]
    check(e, prefill_left(i["tokens"], i["hits"]))


@entry("head.7.greedy_spec")
def test_greedy_speculation(e):
    i = e["inputs"]
    check(e, int(speculated_tokens(i["K"], i["matched"])))
    assert speculated_tokens(i["K"], i["K"]) == i["K"] + 1
