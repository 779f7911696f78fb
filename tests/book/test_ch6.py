"""Chapter 6, training LLaMA 3: every entry through the public API with the entry's own inputs."""

from book.oracle import check, entry
from shardwise.book.rules.training import (
    days,
    min_chips,
    rescaled,
    sequence_limit,
    training_seconds,
    x_opt,
    years,
)
from shardwise.models.activations import book_activation_bytes
from shardwise.models.flops import six_nd
from shardwise.models.training_state import training_state
from shardwise.units import DAY


def state(i):
    return training_state(param=i["param"], moments=i["moments"]) * i["N"]


def checkpoints(i, saved):
    return book_activation_bytes(i["BT"], i["L"], i["D"], saved, i["checkpoint_dtype"])


@entry("6.q1")
def test_flops_per_token(e):
    i = e["inputs"]
    flops = six_nd(i["N"])
    check(e, [flops, training_seconds(flops, i["chips"], i["peak"])])


@entry("6.q2")
def test_flops_of_the_run(e):
    i = e["inputs"]
    flops = six_nd(i["N"], i["tokens"])
    check(e, [flops, years(training_seconds(flops, i["chips"], i["peak"]))])


@entry("6.q3")
def test_days_on_a_pod(e):
    i = e["inputs"]
    flops = six_nd(i["N"], i["tokens"])
    seconds = training_seconds(flops, i["chips"], i["peak"], i["mfu"])
    check(e, [seconds, days(seconds)])


@entry("6.q4.mem")
def test_memory(e):
    i = e["inputs"]
    kept = checkpoints(i, i["n"])
    check(e, [state(i).params, state(i).optimizer, kept, state(i).total + kept])


@entry("6.q4.chips")
def test_min_chips(e):
    i = e["inputs"]
    check(e, min_chips(state(i).total + checkpoints(i, i["n"]), i["hbm"]))


@entry("6.q4.days")
def test_days_on_few_chips(e):
    i = e["inputs"]
    seconds = rescaled(i["days"] * DAY, i["chips"], i["other_chips"])
    check(e, [days(seconds), years(seconds)])


@entry("6.q5")
def test_bytes_per_chip(e):
    i = e["inputs"]
    check(e, [(state(i).total + checkpoints(i, n)) / i["chips"] for n in i["n"]])


@entry("6.q6")
def test_sequence_limit(e):
    check(e, sequence_limit(e["inputs"]["batch_tokens"], e["inputs"]["sequence_length"]))


@entry("6.q8.xopt")
def test_x_opt(e):
    i = e["inputs"]
    check(e, x_opt(i["batch_tokens"], i["F"], i["chips"], i["axes_x"], i["axes_y"]))
