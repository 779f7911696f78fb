"""A plan beside its program: rows by part, memory by kind, and what is said of a difference."""

import pytest
from tests.commands.program.dumps import NAMES, program
from tests.tiers import spread

from shardwise.boundary.records import plain
from shardwise.commands.program.comparing import compare_program, figure_of, memory_sentences
from shardwise.errors import BadRequest
from shardwise.models import from_hf
from shardwise.plans.identity import model_hash
from shardwise.plans.train import TrainPlan
from shardwise.profiler.ahead import Buffer
from shardwise.profiler.buffer_kinds import memory_of, places
from shardwise.profiler.trace import read_trace

L, D, F, V = 6, 256, 768, 1280
CFG = from_hf(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": D,
        "intermediate_size": F,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_hidden_layers": L,
        "vocab_size": V,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    },
    name="six layers",
)


def plan(mesh, **choices):
    devices = 1
    for degree in mesh.values():
        devices *= degree
    return TrainPlan(
        model=CFG.name,
        model_hash=model_hash(CFG),
        slice="v5e:2x4",
        mesh=mesh,
        box=(2, 4),
        global_batch_sequences=16,
        sequence_length=64,
        microbatches=1,
        layers_per_stage=(L,),
        **choices,
    )


def buffer(shape, kind="temporary", size=1000, op="", source=""):
    return Buffer(bytes=size, kind=kind, name="x", shape=shape, op=op, source=source)


@pytest.mark.parametrize(
    ("mesh", "shape", "kind", "gathered", "layers"),
    [
        ({"fsdp": 8}, f"bf16[{L},{D},{F}]", "transient", True, L),
        ({"fsdp": 8}, f"bf16[{F},{D}]", "transient", True, 1),
        ({"fsdp": 8}, f"bf16[{L},{D // 8},{F}]", "gradients", False, L),
        ({"fsdp": 4, "tensor": 2}, f"bf16[{L},{F // 2},{D}]", "transient", True, L),
        ({"fsdp": 4, "tensor": 2}, f"bf16[{L},{F // 2},{D // 4}]", "gradients", False, L),
        ({"data": 8}, f"bf16[{L},{D},{F}]", "gradients", False, L),
        ({"fsdp": 8}, f"bf16[{L},2,64,{D}]", "checkpoints", False, L),
        ({"fsdp": 8}, f"f32[2,64,{V}]", "transient", False, 1),
        ({"fsdp": 8}, "(s32[], f32[8])", "transient", False, 1),
    ],
)
def test_a_temporary_is_told_by_its_shape(mesh, shape, kind, gathered, layers):
    (found,) = places([buffer(shape)], plan(mesh), CFG)
    assert (found.kind, found.gathered, found.layers) == (kind, gathered, layers)


def test_arguments_are_told_by_their_names():
    names = {"state['params']['embedding']": "params", "state['optimizer']['master']": "optimizer"}
    found = places([buffer("f32[8]", "argument", op=op) for op in names], plan({"fsdp": 8}), CFG)
    assert [p.kind for p in found] == list(names.values())
    assert memory_of(found) == {"params": 1000.0, "optimizer": 1000.0}


@pytest.mark.parametrize(("reshard", "said"), [(True, True), (False, False)])
def test_weights_that_stay_gathered_are_named_where_the_plan_drops_them(reshard, said):
    p = plan({"fsdp": 8}, weight_gather="per_pass" if reshard else "per_microbatch")
    found = places([buffer(f"bf16[{L},{D},{F}]", size=int(1.2 * 2**30))], p, CFG)
    rows = [figure_of("memory", "peak", 2.0**31, 2.0**31)]
    sentences = list(memory_sentences(p, rows, found))
    want = (
        "XLA keeps the gathered mlp.gate, mlp.up, mlp.down of 6 layers alive for the backward "
        "pass: +1.2 GiB (1.29 GB)"
    )
    assert sentences == ([want] if said else [])


def test_a_kind_that_differs_names_its_largest_buffer():
    p = plan({"fsdp": 8})
    made = buffer(f"bf16[{L},2,64,{D}]", size=2**30, op="jit(f)/while/norm", source="a/b/c/x.py:7")
    found = places([made], p, CFG)
    rows = [
        figure_of("memory", "peak", 2.0**32, 2.0**32),
        figure_of("memory", "checkpoints", 2.0**28, 2.0**30),
        figure_of("memory", "params", 2.0**30, 2.0**29),
        figure_of("memory", "optimizer", 2.0**30, 2.0**30),
    ]
    more, less = memory_sentences(p, rows, found)
    assert more == (
        "the program assigns 0.75 GiB (0.805 GB) more checkpoints than planned; the largest is "
        f"bf16[{L},2,64,{D}] of while/norm (b/c/x.py:7), 1 GiB (1.07 GB)"
    )
    assert less == "the program assigns 0.5 GiB (0.537 GB) less params than planned"


@pytest.mark.parametrize("name", spread(NAMES, slow=2))
def test_a_dump_has_every_part(name):
    priced, made = program(name)
    found = compare_program(priced, made)
    for part in ("step", "seconds", "flops", "hbm_bytes", "collective_bytes", "memory"):
        assert found.figures(part)
    peak = found.figures("memory")[0]
    assert (peak.what, peak.compiled) == ("peak", made.compiled.needed_bytes)
    assert peak.predicted == made.planned.peak_bytes
    flops = sum(row.compiled for row in found.figures("flops"))
    assert flops == pytest.approx(float(made.work.work.flops()))
    state = [row for row in found.figures("memory") if row.what in ("params", "optimizer")]
    for row in state:  # the largest 60 buffers are kept of a dump
        assert row.compiled <= 1.001 * row.predicted
    assert found.differences


def test_a_collective_that_is_missing_in_the_plan_is_named_with_its_line():
    """A ring that stands for a reduce-scatter, with the matmul that it is cut for."""
    found = compare_program(*program("zero-1"))
    assert any(
        text.endswith("less reduce-scatter over data than planned") for text in found.differences
    )
    ring = next(text for text in found.differences if "more permute over data" in text)
    assert "dot_general (" in ring
    assert ".py:" in ring


def test_the_rewrites_that_explain_a_difference_are_named():
    found = compare_program(*program("zero-1"))
    assert any(text.startswith("explained by 'ring': reduce-scatter") for text in found.differences)
    assert not any("not explained by any known rewrite" in text for text in found.differences)


def test_a_comparison_is_a_document():
    found = compare_program(*program("zero-1"))
    doc = plain(found)
    assert doc["phase"] == "train"
    assert doc["differences"] == found.differences
    assert {"what", "predicted", "compiled"} == set(doc["collective_bytes"][0])


def test_a_capture_of_another_program_is_refused(tmp_path):
    priced, made = program("zero-1")
    event = {"ph": "X", "name": "fusion.1", "ts": 0, "dur": 5, "pid": 1, "tid": 1}
    event["args"] = {"hlo_op": "nothing.like.it", "hlo_module": "jit_other"}
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [' + str(event).replace("'", '"') + "]}")
    with pytest.raises(BadRequest, match="trace"):
        compare_program(priced, made, read_trace(path))


def test_what_is_measured_stands_beside_both(tmp_path):
    """A capture in which every op of the program takes a microsecond."""
    priced, made = program("zero-1")
    names = [item.name for item in made.work.ops]
    events = [
        {
            "ph": "X",
            "name": name,
            "ts": 2 * i,
            "dur": 1,
            "pid": 1,
            "tid": 1,
            "args": {"hlo_op": name, "hlo_module": made.work.name},
        }
        for i, name in enumerate(dict.fromkeys(names))
    ]
    path = tmp_path / "trace.json"
    path.write_text(str({"traceEvents": events}).replace("'", '"'))
    found = compare_program(priced, made, read_trace(path))
    measured = sum(row.measured or 0.0 for row in found.figures("seconds"))
    assert measured == pytest.approx(1e-6 * len(events), rel=0.01)
    assert "measured" in plain(found)["seconds"][0]
