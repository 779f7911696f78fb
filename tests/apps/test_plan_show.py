"""`plan show` and `plan diff`: a saved plan reproduces its numbers, edits say what they do."""

import json
from copy import deepcopy

import pytest
from tests.apps.commands import answer, answered, document, flat, refused, run
from tests.apps.test_plan_train import HELD, SMALL, STABLE

from shardwise.commands.pricing.serve_page import held_kinds
from shardwise.models import load_model, state_bytes
from shardwise.models.zoo import hf_config
from shardwise.units import format_usd

pytestmark = pytest.mark.usefixtures("answers_kept")


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The text of a plan file and the document it was written with."""
    path = tmp_path_factory.mktemp("planned") / "plan.yaml"
    return answer(*SMALL, *HELD, "-o", path), path.read_text()


@pytest.fixture
def saved(planned, tmp_path):
    """A plan file of the test's own and the document it was written with."""
    doc, text = planned
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    return path, deepcopy(doc)


def test_show_reproduces_every_number(saved, capsys):
    path, planned = saved
    shown = document(capsys, "plan", "show", path)
    assert set(shown["result"]) >= STABLE - {"runners_up", "search"}
    assert shown["result"].pop("audit")["verdicts"]
    assert shown["result"].pop("measured") is None
    for name, value in shown["result"].items():
        assert planned["result"][name] == value, name
    assert shown["warnings"] == []


def test_show_says_where_every_choice_came_from(saved, capsys):
    path, _ = saved
    resolved = document(capsys, "plan", "show", path, "--set", "remat=offload")["resolved"]
    assert resolved["sequence_length"] == {"value": 2048, "origin": "file"}
    assert resolved["remat"] == {"value": "offload", "origin": "flag"}
    assert resolved["dtypes.master"]["value"] == "none"  # MaxText stores weights once, in f32


def test_overrides_change_the_answer(saved, capsys):
    path, planned = saved
    lean = document(capsys, "plan", "show", path, "--set", "remat=offload")["result"]
    assert lean["remat"] == "offload"
    assert lean["peak_bytes_per_chip"] <= planned["result"]["peak_bytes_per_chip"]
    slow = document(capsys, "plan", "show", path, "--set", "chip.peak_flops.bf16=1e12")["result"]
    assert slow["step_seconds"]["lower"] > planned["result"]["step_seconds"]["lower"]


def test_a_page_says_what_kernels_are_chosen(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(
        "model: qwen3-30b-a3b\nslice: 2*h100:8\nsoftware: any\nmesh: {data: 2, expert: 8}\n"
        "global_batch_sequences: 64\nsequence_length: 4096\nmicrobatches: 2\ncompiled: true\n"
        "cuda_graph: [attn]\ndispatcher: deepep\ngrouped_kernel: fused\n"
    )
    change = ("--set", "fused_loss=false", "--set", "wide=[attention]")
    said = flat(answered("plan", "show", path, *change)[0])
    assert (
        "compiled, loss in float32, CUDA graphs of attn, tokens sent by deepep, experts' matmuls "
        "in one kernel, attention in 16 bits"
    ) in said


@pytest.mark.parametrize(
    ("on", "software", "line", "said"),
    [
        ("h100:8", "megatron", "", "by deepep (the plan names no dispatcher), once to each device"),
        ("mi300x:8", "megatron", "", "by alltoall (the plan names no dispatcher), once to each of"),
        ("h100:8", "megatron", "dispatcher: hybridep", "by hybridep, once to each device that has"),
        ("h100:8", "torchtitan", "", "by fsdp's own exchange (the plan names no dispatcher)"),
        ("h100:8", "megatron", "expert_dispatch: dense", "into slots of a fixed number"),
    ],
)
def test_detail_says_what_sends_tokens_to_experts(capsys, tmp_path, on, software, line, said):
    path = tmp_path / "plan.yaml"
    if "dispatch:" not in line:
        line += "\nexpert_dispatch: ragged"
    path.write_text(
        f"model: qwen3-30b-a3b\nslice: {on}\nsoftware: {software}\nmesh: {{expert: 8}}\n"
        f"batch: 64seq\nlength: 4096\nremat: block\nmicrobatches: 8\n{line}\n"
    )
    code, out, err = run(capsys, "plan", "show", path, "--detail")
    assert code in (0, 3), err
    assert said in flat(out)


@pytest.mark.parametrize(
    ("model", "line", "said"),
    [
        (
            "llama-3-8b",
            "cuda_graph: [attn, moe_router]",
            "has 'moe_router', but llama-3-8b has no r",
        ),
        ("llama-3-8b", "cuda_graph: [mamba]", "but llama-3-8b has no recurrent layers"),
        ("qwen3-30b-a3b", "cuda_graph: [mlp]", "but qwen3-30b-a3b has no MLP that every token"),
        ("llama-3-8b", "cuda_graph: [full, attn]", "has 'full', the whole step, and attn; leave"),
        ("llama-3-8b", "dispatcher: deepep", "dispatcher is deepep, but llama-3-8b has no routed"),
        ("llama-3-8b", "grouped_kernel: fused", "grouped_kernel is fused, but llama-3-8b has no"),
    ],
)
def test_choices_of_layers_that_a_model_lacks_are_refused(capsys, tmp_path, model, line, said):
    path = tmp_path / "plan.yaml"
    path.write_text(
        f"model: {model}\nslice: h100:8\nsoftware: megatron\nmesh: {{data: 8}}\nbatch: 64seq\n"
        f"length: 4096\nmicrobatches: 8\n{line}\n"
    )
    for command in (("plan", "show", path), ("export", path, "--to", "megatron")):
        assert said in refused(capsys, [*command])


def test_constants_of_the_plan_hold_unless_the_flag_says_otherwise(capsys, tmp_path):
    path = tmp_path / "book.yaml"
    planned = document(capsys, *SMALL, *HELD, "--constants", "book", "-o", path)["result"]
    shown = document(capsys, "plan", "show", path)["result"]
    assert shown["step_seconds"] == planned["step_seconds"]
    vendor = document(capsys, "plan", "show", path, "--constants", "vendor")["result"]
    assert vendor["step_seconds"] != planned["step_seconds"]


def test_the_page_and_its_detail(saved, capsys):
    path, _ = saved
    code, out, err = run(capsys, "plan", "show", path)
    assert (code, err) == (0, "")
    assert "where the step goes" in out
    assert "HBM per chip at the peak" not in out
    code, more, _ = run(capsys, "plan", "show", path, "--detail", "--book")
    assert code == 0
    assert more.startswith(out.partition("  more:")[0])
    assert "predicted step" in more
    assert "HBM per chip at the peak" in more


def test_another_model_under_the_same_name_is_warned_of(saved, capsys):
    path, _ = saved
    text = path.read_text()
    old = next(line for line in text.splitlines() if line.startswith("model_hash"))
    path.write_text(text.replace(old, "model_hash: '0000000000000000'"))
    doc = document(capsys, "plan", "show", path)
    assert any("the plan was made for another 'llama-3-8b'" in w for w in doc["warnings"])
    code, _, err = run(capsys, "plan", "show", path)
    assert code == 0
    assert "warning: the plan was made for another 'llama-3-8b' (hash 0000000000000000" in err


def test_a_plan_that_does_not_fit_exits_3(saved, capsys):
    """By how much, what is large, and what would make it fit."""
    path, _ = saved
    args = ["plan", "show", path, "--set", "global_batch_sequences=65536", "--set"]
    said = refused(capsys, [*args, "microbatches=1"], code=3)
    assert said.startswith("the plan does not fit: ")
    assert "15.8 GiB (16.9 GB) usable" in said
    assert "too much; the largest part is" in said
    assert "more microbatches" in said
    less = ["plan", "show", path, "--set", "chip.hbm_usable_bytes=1e9"]
    assert "0.931 GiB (1 GB) usable" in refused(capsys, less, code=3)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("remta=block", "unknown key 'remta'; did you mean 'remat'?"),
        ("mesh.tensro=2", "unknown mesh axis 'tensro'; did you mean 'tensor'?"),
        ("mesh.tensor=0", "mesh axis 'tensor' has degree 0; a degree is at least 1"),
        ("mesh={tensor: 2, fsdp: 8}", "mesh axes stand in the order tensor, fsdp; write them out"),
        (
            "mesh={fsdp: 8}",
            "has 8 devices; 1 slice(s) x box 4x4 of v5e:4x4 have 16: make them equal by",
        ),
        ("mesh={fsdp: 4, expert: 2, tensor: 2}", "llama-3-8b has no routed experts"),
        ("remat", "--set 'remat' is not PATH=VALUE; write it like --set remat=block"),
        ("remat=[", "the value of --set remat is not YAML"),
        ("remat=blok", "key 'remat' is 'blok'; it must be 'none'"),
        ("microbatches=many", "key 'microbatches' is 'many'; it must be a whole number"),
        ("microbatches=0", "microbatches is 0; it must be at least 1"),
        ("zero=3", "zero is 3; it takes 0, 1 or 2"),
        ("sequence_length=0", "sequence_length is 0; it must be at least 1"),
        ("global_batch_sequences=33", "the nearest legal batch is 32 sequences"),
        ("layers_per_stage=[31]", "adds up to 31 layers; llama-3-8b has 32"),
        ("layers_per_stage=[16, 16]", "layers_per_stage has 2 entries for 1 stages"),
        ("model=llama-3-9b", "unknown model 'llama-3-9b'; did you mean 'llama-3-8b'"),
        ("model=llama-3-70b", "adds up to 32 layers; llama-3-70b has 80"),
        ("slice=v5e", "slice 'v5e' has no shape"),
        ("slice=v5e:4x8x2", "'v5e:4x8x2' is not a slice of v5e"),
        ("slice=v5p:4x4x4", "box 4x4 does not fit v5p:4x4x4"),
        ("box=[4, 5]", "box 4x5 does not fit v5e:4x4"),
        ("dtypes.compute=fp4", "chip 'v5e' has no peak for dtype 'fp4'"),
        ("chip.cores=-1", "chip"),
        ("kind=trian", "unknown plan kind 'trian'; did you mean 'train'?"),
    ],
)
def test_overrides_that_are_refused(saved, capsys, override, said):
    path, _ = saved
    assert said in refused(capsys, ["plan", "show", path, "--set", override])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a plan: it has no keys"),
        (b"kind: train\nmesh: {fsdp", "is not YAML at line"),
        (b"\xff\xfe", "is not text in UTF-8"),
        (b"kind: train\nmodel: llama-3-8b\n", "lacks slice, mesh, batch, length"),
        (b"{}", "lacks model, slice, mesh, batch, length"),
    ],
)
def test_files_that_are_no_plan(capsys, tmp_path, content, said):
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    assert said in refused(capsys, ["plan", "show", path])


def test_a_missing_file_and_a_folder(capsys, tmp_path):
    said = refused(capsys, ["plan", "show", tmp_path / "none.yaml"])
    assert "cannot read the plan" in said
    assert "no such file" in said
    assert "is a directory" in refused(capsys, ["plan", "show", tmp_path])


# Diff ---------------------------------------------------------------------------------------------


def test_diff_says_what_changes_and_what_it_does(saved, capsys, tmp_path):
    path, planned = saved
    other = tmp_path / "other.yaml"
    other.write_text(
        path.read_text().replace(f"remat: {planned['result']['remat']}", "remat: offload")
    )
    result = document(capsys, "plan", "diff", path, other)["result"]
    assert result["changed"] == {"remat": [planned["result"]["remat"], "offload"]}
    before, after = result["effect"]["step_seconds.expected"]
    assert before == planned["result"]["step_seconds"]["expected"]
    assert after == document(capsys, "plan", "show", other)["result"]["step_seconds"]["expected"]
    code, out, _ = run(capsys, "plan", "diff", path, other)
    assert code == 0
    assert "remat" in out
    assert "ratio" in out


def test_a_plan_does_not_differ_from_itself(saved, capsys):
    path, _ = saved
    result = document(capsys, "plan", "diff", path, path)["result"]
    assert result["changed"] == {}
    assert all(a == b for a, b in result["effect"].values())
    assert "(no choice differs)" in run(capsys, "plan", "diff", path, path)[1]


def test_diff_of_a_missing_file(saved, capsys, tmp_path):
    path, _ = saved
    assert "cannot read the plan" in refused(capsys, ["plan", "diff", path, tmp_path / "no.yaml"])


def test_the_document_is_json_all_the_way(saved):
    _, planned = saved
    assert json.loads(json.dumps(planned)) == planned


FIVE = "model: llama-3.2-1b\nslice: v5e:4x4\nmesh: {fsdp: 16}\nbatch: 64seq\nlength: 2k\n"


def test_what_a_plan_by_hand_leaves_out_is_shown_with_its_origin(tmp_path):
    path = tmp_path / "five.yaml"
    path.write_text(FIVE.replace("llama-3.2-1b", "llama-3-8b") + "dtypes: {grad: bf16}\n")
    origins = {
        name: found["origin"] for name, found in answer("plan", "show", path)["resolved"].items()
    }
    said = {"model": "file", "mesh.fsdp": "file", "global_batch_sequences": "file"}
    said |= {"dtypes.grad": "file", "dtypes.param": "usual", "software": "computed"}
    said |= {"box": "computed", "remat": "searched", "attention_kernel": "default"}
    assert {name: origins[name] for name in said} == said


@pytest.mark.slow
def test_dollars_of_a_shown_plan(tmp_path):
    path = tmp_path / "five.yaml"
    path.write_text(FIVE)
    out, _ = answered("plan", "show", path, "--price", "v5e=2")
    result = answer("plan", "show", path, "--price", "v5e=2", "--tokens", "1T")["result"]
    assert result["run"]["usd"] == pytest.approx(16 * 2 * 1e12 / result["tokens_per_second"] / 3600)
    line = next(line for line in out.splitlines() if line.startswith("  cost"))
    assert (
        f"{format_usd(result['run']['usd'])} per 1T tokens at $2.00 per chip-hour (yours)" in line
    )
    out, _ = answered("plan", "show", path, "--tokens", "1T")
    assert any(line.startswith("  1T tokens") and " days" in line for line in out.splitlines())
    both = answer("plan", "diff", path, path, "--set", "remat=none")["result"]["effect"]
    assert both["usd_per_trillion_tokens"][0] == both["usd_per_trillion_tokens"][1] > 0


@pytest.mark.slow
def test_tokens_are_of_a_training_run(capsys, tmp_path):
    path = tmp_path / "serve.yaml"
    words = ("--model", "llama-3.2-1b", "--on", "v5e:2x2", "--input", "512", "--output", "64")
    answered("plan", "serve", *words, "-o", path)
    assert "--tokens is the length of a training run" in refused(
        capsys, ["plan", "show", path, "--tokens", "1T"]
    )


def test_a_config_of_an_unknown_class_is_read_as(tmp_path, capsys):
    config = {**hf_config("llama-3.2-1b"), "architectures": ["NewForCausalLM"], "model_type": "new"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = tmp_path / "five.yaml"
    path.write_text(FIVE.replace("llama-3.2-1b", "config.json"))
    assert "--as" in refused(capsys, ["plan", "show", path])
    shown = answer("plan", "show", path, "--as", "LlamaForCausalLM")["result"]
    path.write_text(FIVE)
    assert (
        shown["step_seconds"]
        == answer("plan", "show", path, "--set", "zero=1")["result"]["step_seconds"]
    )


@pytest.mark.slow
def test_only_axes_that_the_mesh_has_store_parameters(tmp_path):
    """No word of fsdp where the plan has no such axis."""
    for number, (mesh, stored, said) in enumerate(
        (
            ("{data: 8, context: 2}", "[fsdp, context]", "parameters stored over context"),
            ("{fsdp: 8, context: 2}", "[fsdp, context]", "parameters stored over fsdp+context"),
            ("{data: 8, context: 2}", "[fsdp]", ""),
        )
    ):
        path = tmp_path / f"{number}.yaml"
        path.write_text(SMALL_FIVE.replace("MESH", mesh) + f"storage_axes: {stored}\n")
        out, _ = answered("plan", "show", path, "--set", "optimizer=sgd")
        assert ("stored over" in flat(out), said in flat(out)) == (bool(said), True), out


SMALL_FIVE = """model: llama-3.2-1b
slice: v5p:2x2x4
mesh: MESH
batch: 16seq
length: 2048
"""


@pytest.mark.parametrize(
    ("lines", "meant"),
    [
        ("mesh: {tp: 8}", "unknown mesh axis 'tp'; shardwise calls it 'tensor'"),
        (
            "mesh: {fsdp: 8}\nremat: selective",
            "'block' or 'offload'; shardwise calls it 'matmul_outputs'",
        ),
        ("mesh: {fsdp: 8}\nremat: full", "'block' or 'offload'; shardwise calls it 'block'"),
    ],
)
def test_words_of_other_programs_are_answered_with_ours(capsys, tmp_path, lines, meant):
    plan = tmp_path / "plan.yaml"
    head = "model: llama-3-8b\nslice: h100:8\nglobal_batch_sequences: 8\nsequence_length: 512\n"
    plan.write_text(head + lines + "\n")
    assert meant in refused(capsys, ["plan", "show", plan])


ENGINE_PLAN = """\
model: qwen3-235b-a22b
slice: h100:4
mesh: {tensor: 4}
batch: BATCH
input_length: 2000
output_length: 500
prefill_chunk: 8192
engine: vllm
dtypes: {weights: fp8}
scheduling: {memory_share: 0.9, release: 0.9.2}
"""


def test_a_plan_says_what_a_sequence_keeps_beside_its_keys_and_values(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    hybrid = ENGINE_PLAN.replace("BATCH", "64").replace("qwen3-235b-a22b", "nemotron-3-nano")
    path.write_text(hybrid, encoding="utf-8")
    kept = document(capsys, "plan", "show", path)["result"]["sequence"]
    assert kept["state_bytes"] == state_bytes(load_model("nemotron-3-nano"))
    said = "keeps 6,144 B of keys and values a token; 49.1 MB of state, whatever its length"
    assert said in flat(run(capsys, "plan", "show", path)[1])


def test_a_plan_says_the_cache_as_its_engine_prints_it(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    path.write_text(ENGINE_PLAN.replace("BATCH", "64"), encoding="utf-8")
    found = document(capsys, "plan", "show", path)["result"]
    line = f"GPU KV cache size: {found['line_tokens']:,} tokens; Maximum concurrency for 2,500"
    assert line in flat(run(capsys, "plan", "show", path)[1])
    assert found["line_tokens"] == pytest.approx(2_500 * found["line_requests"], rel=1e-3)
    assert set(found["memory_by_kind"]) == {"weights", "kv", "activations", "engine"}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_cache_of_ranks_is_said_of_each_and_in_the_words_of_its_own_engine(
    tmp_path, capsys, engine
):
    path = tmp_path / "plan.yaml"
    plan = ENGINE_PLAN.replace("BATCH", "64").replace("qwen3-235b-a22b", "qwen3-0.6b")
    plan = plan.replace("tensor: 4", "data: 4").replace("engine: vllm", f"engine: {engine}")
    path.write_text(plan.replace(", release: 0.9.2", ""), encoding="utf-8")
    said = flat(run(capsys, "plan", "show", path)[1])
    assert ", of each of 4 ranks" in said
    assert ("GPU KV cache size" in said) is (engine == "vllm")


def test_a_plan_of_more_sequences_than_its_cache_holds_says_how_many_it_does(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    path.write_text(ENGINE_PLAN.replace("BATCH", "1024"), encoding="utf-8")
    said = refused(capsys, ["plan", "show", path], code=3)
    assert "1,024 sequences of 2,500 tokens, and the cache holds 81.0 in 90% of the memory" in said
    assert "set batch to 81 or less" in said


def test_a_plan_of_an_engine_that_would_not_start_does_not_fit(tmp_path, capsys):
    """gpt-oss-120b on one H100 had -2.14 GiB for its cache (vllm-project/vllm#23278), and was said
    to fit: the weights, as they are stored, and a small step are less than what is usable."""
    path = tmp_path / "plan.yaml"
    plan = ENGINE_PLAN.replace("qwen3-235b-a22b", "gpt-oss-120b").replace("h100:4", "h100:1")
    plan = plan.replace("{tensor: 4}", "{}").replace("0.9.2", "0.10.1").replace("fp8", "checkpoint")
    path.write_text(plan.replace("BATCH", "1024"), encoding="utf-8")
    assert "the cache has no room for a request of 2,500 tokens" in refused(
        capsys, ["plan", "show", path], code=3
    )


def test_a_plan_holds_no_more_cache_than_there_is_room_for():
    """vLLM's 256 sequences of 8,448 tokens take 264 GiB, of which an H100 has room for 54."""
    asked = {"weights": 15.0, "kv": 264.0, "engine": 2.0}
    kinds, whole = held_kinds(asked, 71.0)
    assert (kinds["kv"], whole) == (54.0, 264.0)
    assert held_kinds(asked, 300.0) == (asked, 0.0)
    assert held_kinds(asked, 10.0) == (asked, 0.0)  # nothing fits
