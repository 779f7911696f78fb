"""What is run again, kept and copied, by kind of activation."""

import pytest
from tests.planner.steps import D, F, H, K, L, N, dense, moe, over, step

from shardwise.models import load_model
from shardwise.models.activations import statuses
from shardwise.models.remat import REMAT_KINDS, REMAT_POLICIES, SAVED_KINDS
from shardwise.planner.price.memory import checkpoint_bytes
from shardwise.planner.step.work import train_work

TOKENS, T = 4 * 128, 128


def again(cfg=None, **fields):
    work = train_work(cfg or dense(), step(**fields))
    return [o for o in work.ops if o.phase == "recompute"]


def names(ops):
    return [o.name.removeprefix("re ") for o in ops]


def kinds(**table):
    return {"remat_kinds": table}


def test_selective_recomputation_runs_attention_alone():
    """Megatron-LM's "selective": the core of attention again, no matmul (arXiv 2205.05198)."""
    ops = again(choices=kinds(attention="recompute"))
    assert names(ops) == ["attention.core"]
    flops = sum(o.flops["bf16"] * o.count for o in ops)
    assert flops == pytest.approx(4 * TOKENS * (T / 2) * N * H * L)


def test_a_policy_is_its_table():
    """Writing a policy out by kinds changes nothing."""
    for policy in REMAT_POLICIES:
        table = {kind: saved for kind, saved in statuses(policy, {}).items() if kind in SAVED_KINDS}
        plain = train_work(dense(), step(remat=policy)).by_key()
        spelt = train_work(dense(), step(remat=policy, choices={"remat_kinds": table})).by_key()
        flops = {k: v["flops"] for k, v in plain.items()}
        assert flops == {k: v["flops"] for k, v in spelt.items()}
    assert set(statuses("none", {})) == {*REMAT_KINDS, "dispatch"}


def test_keeping_a_kind_saves_its_ops_and_costs_its_bytes():
    """Block, but keep q, k and v: three matmuls fewer, N H + 2 K H elements per token more."""
    block, kept = step(remat="block"), step(remat="block", choices=kinds(qkv="keep"))
    fewer = train_work(dense(), block).flops() - train_work(dense(), kept).flops()
    width = (N + 2 * K) * H
    assert fewer == pytest.approx(2 * TOKENS * D * width * L)
    more = checkpoint_bytes(dense(), kept) - checkpoint_bytes(dense(), block)
    assert more == pytest.approx(L * TOKENS * width * 2)


def test_an_offloaded_kind_crosses_the_host_link_and_leaves_the_device():
    shape = step(choices=kinds(mlp_in="offload"))
    work = train_work(dense(), shape)
    copies = work.where(lambda o: o.stream == "host")
    each = TOKENS * 2 * F * 2
    assert sum(o.host_bytes * o.count for o in copies.ops) == pytest.approx(2 * L * each)
    assert not [o for o in work.ops if o.phase == "recompute"]
    less = checkpoint_bytes(dense(), step()) - checkpoint_bytes(dense(), shape)
    assert less == pytest.approx((L - 2) * each)  # two layers' copies are on their way


def test_experts_results_are_needed_to_weigh_them():
    """The gradient of the router needs every expert's result: a mixture layer runs to its end."""
    assert "experts.down" in names(again(moe(), remat="block"))
    assert "mlp.down" not in names(again(dense(), remat="block"))
    assert "mlp.down" in names(again(dense(), remat="block", choices={"stack": "megatron"}))


def test_a_norm_after_the_block_needs_the_block_s_result():
    cfg = load_model("gemma-2-9b")
    assert "mlp.down" in names(again(cfg, remat="block"))


def test_megatron_keeps_pieces_and_gathers_again_and_nanotron_keeps_whole_inputs():
    """Two gathers per layer fewer in the backward pass, two inputs of D per token more kept, and
    what the activation yields before its gate, which Megatron's fused kernel computes again."""
    megatron, nanotron = (step(tensor=2, choices={"stack": s}) for s in ("megatron", "nanotron"))
    gathered = [
        over(train_work(dense(), s), "tensor").collective_bytes("all_gather")
        for s in (megatron, nanotron)
    ]
    assert gathered[0] - gathered[1] == pytest.approx(2 * L * TOKENS * D * 2)
    kept = [float(checkpoint_bytes(dense(), s)) for s in (megatron, nanotron)]
    assert kept[1] - kept[0] == pytest.approx(L * (2 * TOKENS * D * 2 / 2 + TOKENS * F * 2 / 2))


def test_the_gate_of_an_mlp_can_be_kept_alone():
    """torchtitan's selective checkpoints save every other matmul; a plan that does not name the
    gate treats it as the matmul beside it."""
    half = {"remat": "block", "choices": {"remat_kinds": {"mlp_gate": "keep"}}}
    assert "mlp.up" in names(again(dense(), **half))
    assert "mlp.gate" not in names(again(dense(), **half))
    both = {"remat": "block", "choices": {"remat_kinds": {"mlp_in": "keep"}}}
    assert not {"mlp.up", "mlp.gate"} & set(names(again(dense(), **both)))
    alone, whole, none = (
        float(checkpoint_bytes(dense(), step(**x))) for x in (half, both, {"remat": "block"})
    )
    assert alone - none == pytest.approx(L * TOKENS * F * 2)
    assert whole - none == pytest.approx(2 * L * TOKENS * F * 2)


def test_the_activations_of_a_gpt_layer():
    """arXiv 2205.05198, equation 1 and 2: 34 s b h + 5 a s^2 b bytes per layer, of which dropout's
    masks are 2 s b h + a s^2 b and its output 2 a s^2 b; without dropout 32 s b h + 2 a s^2 b. Norm
    statistics come on top."""
    cfg, s, b = load_model("gpt2-xl"), 1024, 4
    h, a = 1600, 25
    shape = step(sequences=float(b), length=s, choices={"attention_kernel": "scores"})
    per_layer = float(checkpoint_bytes(cfg, shape)) / cfg.layers
    assert per_layer == pytest.approx(32 * s * b * h + 2 * a * s * s * b, rel=2e-3)


def test_recomputing_norms_does_not_send_tokens_again():
    """DeepSeek-V3 (section 3.2.3) recomputes norms; what experts received is kept."""
    ops = names(again(moe(), choices=kinds(norm="recompute"), expert=4))
    assert "mlp.norm" in ops
    assert not [o for o in ops if o.startswith("experts.")]
    assert "experts.dispatch" in names(again(moe(), remat="matmul_outputs", expert=4))
