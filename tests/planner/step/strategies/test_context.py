"""Attention over a sequence that is cut: volumes and FLOPs by method, kernel and documents."""

import pytest
from tests.planner.steps import D, H, K, N, dense, over, runs, step

from shardwise.planner.step.work import train_work

TOKENS, T, L = 4 * 128, 128, 3
CORE = 4 * TOKENS * (T / 2) * N * H * L


def work(method="all_gather", context=4, cfg=None, **choices):
    shape = step(context=context, choices={"context_method": method, **choices})
    return train_work(cfg or dense(), shape)


def attention(w):
    return over(w, "context").where(lambda o: o.component == "attention_core")


def sent(o, members):
    """Bytes that one device sends, by the algebra of each collective."""
    share = (members - 1) / members
    wire = o.collective
    return {
        "all_gather": wire.bytes * share,
        "reduce_scatter": wire.bytes * share,
        "all_to_all": wire.bytes * share / members,
        "permute": wire.bytes,
    }[wire.kind]


def test_every_method_does_the_same_attention():
    flops = {m: work(m).flops() for m in ("all_gather", "ring", "ulysses")}
    assert flops["ring"] == flops["ulysses"] == flops["all_gather"]


def test_a_ring_sends_what_a_gather_sends():
    """Forward: every block of K and V passes every device but its own, either way."""
    gather, ring = (
        [o for o in attention(work(m)).ops if o.phase == "forward"] for m in ("all_gather", "ring")
    )
    assert sum(sent(o, 4) for o in ring) == pytest.approx(sum(sent(o, 4) for o in gather))
    assert {o.collective.kind for o in ring} == {"permute"}


def test_the_hops_of_a_ring_run_beside_the_chain():
    w = work("ring")
    hops = [o for o in w.ops if o.name.endswith("attention.ring")]
    assert all(o.after == () for o in hops)
    assert not any(h.id in o.after for h in hops for o in w.ops)
    # Backward: the blocks once more, and their gradients.
    forward, backward = (
        sum(o.collective.bytes * o.count for o in hops if o.phase == phase)
        for phase in ("forward", "backward")
    )
    assert backward == 2 * forward


def test_ulysses_moves_four_tensors_of_n_times_h():
    """DeepSpeed Ulysses, section 3.2: 3 N h in and N h out per layer, h the hidden size, where
    every head has its own keys."""
    cfg = dense(num_key_value_heads=N)
    wires = attention(work("ulysses", context=2, cfg=cfg)).where(lambda o: o.phase == "forward")
    assert wires.collective_bytes("all_to_all") == pytest.approx(L * 4 * TOKENS * D * 2)


def test_ulysses_replicates_keys_beyond_their_heads():
    """Two KV heads over eight devices: each needs one, so four times as many travel."""
    moved = [
        attention(work("ulysses", context=c)).where(lambda o: o.phase == "forward") for c in (2, 8)
    ]
    queries = 2 * TOKENS * N * H * 2 * L
    keys = 2 * TOKENS * K * H * 2 * L
    assert moved[0].collective_bytes() == pytest.approx(queries + keys)
    assert moved[1].collective_bytes() == pytest.approx(queries + 4 * keys)


def test_documents_pay_for_their_own_length_only():
    """Half of the tokens in one document, the rest in two: 1/4 + 2/16 of the square."""
    whole = train_work(dense(), step()).flops()
    packed = train_work(dense(), step(choices={"packed_lengths": (64, 32, 32)})).flops()
    assert whole - packed == pytest.approx(3.5 * CORE * (1 - (1 / 4 + 2 / 16)))


def test_scores_in_memory_are_computed_whole_and_kept():
    """No mask is skipped, and nothing is made again: 3 x 2 x the causal half. Four passes of
    2-byte scores forward, twice as many backward."""
    flash, scores = (
        train_work(dense(), step(choices={"attention_kernel": k})) for k in ("flash", "scores")
    )
    assert scores.flops() - flash.flops() == pytest.approx((3 * 2 - 3.5) * CORE)
    softmax = scores.where(lambda o: o.name.endswith("attention.softmax"))
    assert softmax.hbm_bytes() == pytest.approx(3 * 4 * 2 * TOKENS * T * N * L)
    assert runs(scores, "attention.softmax") == 2 * L
