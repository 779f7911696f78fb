"""Chapter 5, training: thresholds, mixed meshes in both modes, whole runs and the figures' data."""

import pytest

from book.oracle import ENTRIES, check, entry
from book.test_ch4 import model
from shardwise.book.figure_index import figure
from shardwise.book.figures import BookTorus, math_comms, ratio_curves, splits, widget_axes
from shardwise.book.rules.mlp import mlp_times
from shardwise.book.rules.training import (
    checkpoint_bytes,
    data_chips,
    data_limit,
    days,
    mixed_limit,
    pipeline_bubble,
    tensor_d_ff,
    tensor_limit,
    training_seconds,
    x_opt,
)
from shardwise.hardware import load_chip
from shardwise.hardware.slices import domain_of
from shardwise.hardware.totals import link_both_ways
from shardwise.models import params_by_component, params_total
from shardwise.models.flops import six_nd
from shardwise.models.training_state import training_state


def chip_of(i):
    return load_chip(i["chip"], constants="book")


def alpha(i):
    chip = chip_of(i)
    return chip.peak("bf16") / link_both_ways(chip)


def mixed(i, combine="max"):
    return mixed_limit(alpha(i), i["F"], i["MX"], i["MY"], combine)


def layer(i, phase, **how):
    """Math and communication of one layer under pure data parallelism or FSDP."""
    chip = chip_of(i)
    times = mlp_times(
        batch_tokens=i["B"],
        d_model=i["D"],
        d_ff=i["F"],
        peak_flops=chip.peak("bf16"),
        bandwidth=link_both_ways(chip),
        fsdp=i["X"],
        axes_x=i["M"],
        phase=phase,
        **how,
    )
    return [times.math, times.comms()]


@entry("head.5.dp_bytes_per_param")
def test_bytes_per_parameter(e):
    check(e, training_state(**e["inputs"]).total)


@entry("head.5.alpha")
def test_alpha(e):
    check(e, alpha(e["inputs"]))


@entry("rule.5.dp")
def test_data_parallel_times(e):
    check(e, layer(e["inputs"], "backward", replicated=True))
    forward = layer(e["inputs"], "forward", replicated=True)
    assert forward == [pytest.approx(e["correct_value"][0] / 2), 0]


@entry("rule.5.fsdp")
def test_fsdp_times(e):
    check(e, layer(e["inputs"], "forward"))


def run_of(i, chips, mfu):
    return days(training_seconds(i["flops"], chips, chip_of(i).peak("bf16"), mfu))


@entry("head.5.deepseekv2_chips")
def test_chips_of_a_40m_batch(e):
    i = e["inputs"]
    chips = data_chips(i["batch_tokens"], data_limit(alpha(i), i["axes"]))
    check(e, [chips, chips / domain_of(chip_of(i))])


@entry("head.5.llama70_chips")
def test_chips_and_days(e):
    i = e["inputs"]
    chips = data_chips(i["batch_tokens"], data_limit(alpha(i), i["axes"]))
    check(e, [chips, run_of(i, chips, i["mfu"])])


@entry("head.5.tp_llama")
def test_tensor_limits(e):
    i = e["inputs"]
    first, second = (tensor_limit(alpha(i), f) for f in i["F"])
    check(e, [first, tensor_d_ff(alpha(i), i["degree"]), second])


@entry("head.5.Xopt")
def test_x_opt(e):
    i = e["inputs"]
    check(e, x_opt(i["B"], i["F"], i["N"], i["MX"], i["MY"]))


@entry("head.5.mixed_limit")
def test_mixed_limit_overlapped(e):
    i = e["inputs"]
    check(e, mixed_limit(alpha(i), i["F"], i["MXMY"], 1, "max"))


@entry("head.5.mixed_limit_seed")
def test_mixed_limit_added_up(e):
    i = e["inputs"]
    check(e, mixed_limit(alpha(i), i["F"], i["MXMY"], 1, "sum"))


@entry("head.5.mixed_gain")
def test_gain_of_mixing(e):
    i = e["inputs"]
    check(e, data_limit(alpha(i), i["axes"]) / mixed(i))


@entry("head.5.dcn_takeaway")
def test_dcn_threshold(e):
    i = e["inputs"]
    check(e, data_limit(i["C"] / i["W"]))
    chip = load_chip("v5p", constants="book")
    check(e, data_limit(chip.peak("bf16") / chip.data_centre.chip_oneway))


@entry("head.5.llama_2M")
def test_llama_with_2m_tokens(e):
    i = e["inputs"]
    chips = data_chips(i["batch_tokens"], data_limit(alpha(i), i["axes"]))
    limit = mixed(i)
    most = data_chips(i["batch_tokens"], limit)
    check(e, [tensor_limit(alpha(i), i["F"]), chips, limit, most])


@entry("head.5.seed_10pods")
def test_ten_pods(e):
    i = e["inputs"]
    chips = i["pods"] * domain_of(chip_of(i))
    check(e, [chips, *(run_of(i, chips, mfu) for mfu in i["mfu"])])


# The figures ----------------------------------------------------------------------------------


@entry("fig.5.ratio_curves")
def test_ratio_curves(e):
    found = figure(e["id"])
    check(e, list(found.readings.values()))
    again = ratio_curves(BookTorus(chips=e["inputs"]["N"], d_ff=e["inputs"]["F"]))
    assert again == found


@entry("fig.5.math_comms")
def test_math_and_comms(e):
    i = e["inputs"]
    readings = math_comms(BookTorus(chips=i["N"])).readings
    check(e, [readings[f"flat_seconds.{mesh}"] for mesh in i["meshes"]])
    # Errata 5.6: 4.06e5 tokens where the two communications overlap, 1.63e6 where they add up.
    assert readings["threshold_tokens.X_opt, max"] == pytest.approx(406_406, rel=1e-5)
    assert readings["threshold_tokens.X_opt, sum"] == pytest.approx(1_625_625, rel=1e-5)


def from_widget(e, reading):
    readings = figure(e["id"]).readings
    check(e, [readings[f"{reading}.{split}"] for split in e["inputs"]["splits"]])


@entry("fig.5.interactive")
def test_widget_weights(e):
    from_widget(e, "flat_seconds")


@entry("fig.5.interactive.tp")
def test_widget_activations(e):
    from_widget(e, "seconds_at_1e8")


@entry("fig.5.interactive.threshold")
def test_widget_threshold(e):
    """From 256x16 on communication wins at every batch, so no other split has a threshold."""
    from_widget(e, "threshold_tokens")
    assert len(figure(e["id"]).readings) == len(e["correct_value"])


def test_widget_axes():
    """As the entry's inputs word it."""
    by_tensor = {y: widget_axes(y) for _, y in splits()}
    assert [y for y, (x, _) in by_tensor.items() if x == 3] == [1, 2, 4, 8]
    assert [y for y, (x, _) in by_tensor.items() if x == 2] == [16, 32, 64, 128]
    assert [y for y, (_, m) in by_tensor.items() if m == 2] == [256, 512, 1024, 2048]
    assert by_tensor[4096][1] == 3


# The exercises --------------------------------------------------------------------------------


def llama_13b():
    return model(ENTRIES["5.1"]["inputs"])


@entry("5.1")
def test_parameters(e):
    cfg = model(e["inputs"])
    by = params_by_component(cfg)
    vocabulary = by["embedding"] + by["lm_head"]
    check(e, [by["mlp_dense"], by["attention"], vocabulary, params_total(cfg)])


@entry("5.2.state")
def test_state(e):
    check(e, int((training_state() * params_total(model(e["inputs"]))).total))


@entry("5.3.1")
def test_state_of_pure_data_parallelism(e):
    held = (training_state() * params_total(llama_13b())).total
    check(e, int(held))
    assert held > chip_of({"chip": "v5p"}).hbm_bytes


@entry("5.3.2.mem")
def test_memory_under_fsdp(e):
    i, cfg = e["inputs"], llama_13b()
    width = cfg.d_model + 2 * cfg.groups[0].mlp.d_ff
    held = (training_state() * params_total(cfg)).total
    total = checkpoint_bytes(i["batch_tokens"], cfg.layers, width) + held
    check(e, [total, total / i["chips"]])


@entry("5.3.3.limit")
def test_mixed_limit_of_13b(e):
    check(e, mixed(e["inputs"]))


@entry("5.3.3.xopt")
def test_x_opt_of_13b(e):
    i = e["inputs"]
    check(e, x_opt(i["B"], i["F"], i["N"], i["MX"], i["MY"]))


@entry("5.3.3.step")
def test_step_of_13b(e):
    i = e["inputs"]
    check(e, training_seconds(six_nd(i["params"], i["B"]), i["chips"], i["peak"], i["mfu"]))


def exercise_4(e):
    i = e["inputs"]
    flops = six_nd(params_total(llama_13b()), i["B"])
    step = training_seconds(flops, i["chips"], chip_of(i).peak("bf16"), i["mfu"])
    limits = [data_limit(alpha(i), i["axes"]), mixed(i), mixed(i, "sum")]
    x = x_opt(i["B"], i["F"], i["chips"], i["MX"], i["MY"])
    check(e, [i["B"] / i["chips"], *limits, x, step])


@entry("5.4.1M")
def test_1m_tokens(e):
    exercise_4(e)


@entry("5.4.10M")
def test_10m_tokens(e):
    exercise_4(e)


@entry("deck.pp_bubble")
def test_pipeline_bubble(e):
    check(e, pipeline_bubble(e["inputs"]["K"], e["inputs"]["M"]))
