"""State, traffic and FLOPs of the optimizers."""

import pytest
from tests.planner.steps import PARAMS, D, F, L, V, dense, named, over, step

from shardwise.models import load_model, params_total
from shardwise.planner.price.memory import train_memory
from shardwise.planner.step.work import train_work
from shardwise.plans import TrainDtypes

MASTERLESS = TrainDtypes(param="f32", grad="f32", master="none")


def state(name, cfg=None, dtypes=MASTERLESS, **degrees):
    shape = step(dtypes=dtypes, choices={"optimizer": name}, **degrees)
    return float(dict(train_memory(cfg or dense(), shape).points)["optimizer"]["optimizer"])


def test_adam_keeps_two_moments_and_sgd_none():
    assert state("adam") == 8 * PARAMS
    assert state("sgd") == 0


def test_8_bit_adam_keeps_two_bytes_and_a_scale_per_block():
    """Three quarters of the moments saved (arXiv 2110.02861): 8 bytes become little over 2."""
    cfg = load_model("llama-3-70b")
    assert 2 < 8 * state("adam8bit", cfg) / state("adam", cfg) < 2.05
    # A last dim of 300 is two blocks, one of them short.
    little = dense(num_hidden_layers=1)
    more = dense(num_hidden_layers=1, intermediate_size=300)
    gate = [2 * D * (width + 4 * -(-width // 256)) for width in (F, 300)]
    down = [2 * width * (D + 4 * -(-D // 256)) for width in (F, 300)]
    apart = 2 * (gate[1] - gate[0]) + down[1] - down[0]
    assert state("adam8bit", more) - state("adam8bit", little) == pytest.approx(apart)


def test_adafactor_keeps_rows_and_columns():
    """Llama 70B: the second moment of a D x F matrix is D + F numbers, so that the state is a few
    thousandths of Adam's (arXiv 1804.04235)."""
    cfg = load_model("llama-3-70b")
    assert state("adafactor", cfg) / state("adam", cfg) < 2e-3
    # One matrix alone: its rows and its columns, 4 bytes each.
    little = dense(num_hidden_layers=1)
    more = dense(num_hidden_layers=1, intermediate_size=2 * F)
    assert state("adafactor", more) - state("adafactor", little) == pytest.approx(4 * 3 * F)


def test_muon_keeps_one_momentum_of_matrices():
    """Half of Adam's state where matrices rule (arXiv 2502.16982); embeddings and head keep two."""
    ends_and_vectors = 2 * V * D + D + L * 2 * D
    assert state("muon") == pytest.approx(4 * PARAMS + 4 * ends_and_vectors)


def test_muon_costs_five_m_over_b_on_square_matrices():
    """Newton-Schulz over a step's matmuls is at most T m / B: 5 iterations T, B tokens (K. Jordan,
    Muon, 2024, "runtime analysis"); equal where a matrix is square."""
    cfg = dense(intermediate_size=D, num_key_value_heads=8)
    work = train_work(cfg, step(choices={"optimizer": "muon"}))
    newton = work.where(lambda o: o.name.startswith("optimizer.muon.")).flops()
    matmuls = work.where(
        lambda o: o.op_class == "matmul" and o.component in ("attention", "mlp_dense")
    )
    assert newton / matmuls.flops() == pytest.approx(5 * D / (4 * 128))


def test_muon_s_work_is_shared_between_replicas_and_pieces():
    def flops(**degrees):
        work = train_work(dense(), step(choices={"optimizer": "muon"}, **degrees))
        return work.where(lambda o: o.name.startswith("optimizer.muon.")).flops()

    assert flops(data=4) == pytest.approx(flops() / 4)
    assert flops(fsdp=4) == pytest.approx(flops() / 4)
    assert flops(data=4, zero=0) == pytest.approx(flops())
    # A matrix is orthogonalised whole: ranks of tensor that hold pieces of it repeat the work.
    assert flops(tensor=2) == pytest.approx(flops())


def test_muon_collects_whole_matrices():
    """Over replicas each bf16 matrix travels once in all; over fsdp it goes back too."""
    work = train_work(dense(), step(choices={"optimizer": "muon"}, fsdp=4))
    matrices = PARAMS - (2 * V * D + D + L * 2 * D)
    wires = over(work, "fsdp").where(lambda o: o.body == "optimizer")
    assert wires.collective_bytes("all_to_all") == pytest.approx(2 * matrices * 2)


def test_an_update_without_master_reads_the_parameter():
    """f32 throughout: gradient, two moments in and out, the parameter in and out: 28 bytes."""
    adam = named(train_work(dense(), step(dtypes=MASTERLESS)), "optimizer.adam")
    assert adam.hbm_bytes == pytest.approx(PARAMS * (4 + 4 * 4 + 2 * 4))


def test_offloaded_state_crosses_the_host_link_both_ways():
    """bf16 training: 12 bytes per parameter in and 12 out, and none of it on the device."""
    shape = step(choices={"offload_optimizer": True})
    work = train_work(dense(), shape)
    moved = sum(o.host_bytes * o.count for o in work.ops)
    assert moved == pytest.approx(2 * 12 * PARAMS)
    timeline = dict(train_memory(dense(), shape).points)
    assert float(timeline["backward"]["optimizer"]) == 0
    assert 0 < float(timeline["optimizer"]["transient"]) < 12 * PARAMS


def test_the_head_s_stage_updates_the_head_alone():
    """ZeRO-1 over stages: the embedding's update is the first stage's."""
    adam = named(train_work(dense(), step(stage=3, microbatches=3.0)), "optimizer.adam")
    layer = (PARAMS - 2 * V * D - D) / 3
    assert adam.hbm_bytes == pytest.approx(28 * (layer + V * D + D))
    folded = step(stage=3, microbatches=6.0, choices={"pipeline_schedule": "zb_v"})
    both = named(train_work(dense(), folded), "optimizer.adam")
    assert both.hbm_bytes == pytest.approx(28 * (layer + 2 * V * D + D))


def test_the_norm_of_the_gradients_reads_them_once():
    norm = named(train_work(dense(), step()), "optimizer.norm")
    assert norm.hbm_bytes == pytest.approx(2 * PARAMS)
    assert params_total(dense()) == PARAMS
