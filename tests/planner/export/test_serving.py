"""Serving plans in the words of servers: each comes back, or is refused by its field."""

import re
import subprocess
from dataclasses import fields, replace

import pytest
from hypothesis import strategies as st
from tests.drawn import on_drawn
from tests.planner.export.exporting import MODELS

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.export.server_flags import LENGTHS
from shardwise.planner.export.serving import (
    PROGRAMS,
    SERVE_EXPORTERS,
    export_serve,
    given_fields,
    parse_serve,
)
from shardwise.planner.serve.server import fewest_kv_heads
from shardwise.plans import ServeDtypes, ServePlan, model_hash
from shardwise.plans.serve import KV_SHARDINGS, PrefillServer, ServeScheduling
from shardwise.scheduling.routing import ROUTINGS

FIELDS = [
    *(f.name for f in fields(ServePlan)),
    *(f"dtypes.{f.name}" for f in fields(ServeDtypes)),
    *(f"scheduling.{f.name}" for f in fields(ServeScheduling)),
]


def a_plan(model="dense", slice_text="h100:8", mesh=None, **choices):
    """(plan, model, slice)"""
    cfg, piece = MODELS[model], parse_slice(slice_text)
    values = {
        "model": model,
        "model_hash": model_hash(cfg),
        "slice": slice_text,
        "mesh": {"tensor": 8} if mesh is None else mesh,
        "box": piece.shape,
        "batch": 64,
        "input_length": 2048,
        "output_length": 256,
        "kv_sharding": "heads",
    }
    return ServePlan(**(values | choices)), cfg, piece


schedulings = st.builds(
    ServeScheduling,
    policy=st.sampled_from(["interleaved", "chunked"]),
    page_size=st.sampled_from([1, 16, 64, 100, 256]),
    prefix_cache=st.booleans(),
    order=st.sampled_from(["fcfs", "priority", "deadline"]),
    memory_share=st.sampled_from([0.8, 0.9, 0.95]),
    max_waiting=st.sampled_from([0, 0, 0, 100]),
    guesses=st.sampled_from([0, 3]),
    margin=st.sampled_from([0.01, 0.05]),
)


@st.composite
def serving_plans(draw):
    """Plans of eight devices, of all choices that a server might be asked for."""
    degrees = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (8, 1), (1, 8), (2, 2)]))
    data, expert = degrees
    mesh = {"data": data, "expert": expert, "tensor": 8 // (data * expert)}
    if draw(st.booleans()):
        mesh = {axis: degree for axis, degree in mesh.items() if degree > 1}
    return a_plan(
        draw(st.sampled_from(["dense", "moe"])),
        draw(st.sampled_from(["h100:8", "v5e:2x4"])),
        mesh,
        batch=draw(st.integers(1, 500)),
        prefill_chunk=draw(st.sampled_from([512, 1000, 8192])),
        kv_sharding=draw(st.sampled_from(KV_SHARDINGS)),
        dtypes=ServeDtypes(
            weights=draw(st.sampled_from(["checkpoint", "bf16", "fp8", "int8"])),
            kv=draw(st.sampled_from(["bf16", "fp8", "int8"])),
            activations=draw(st.sampled_from(["bf16", "f16"])),
            matmuls=draw(st.sampled_from(["compute", "stored"])),
        ),
        replicas=draw(st.integers(1, 4)),
        prefill_replicas=draw(st.integers(0, 2)),
        routing=draw(st.sampled_from(ROUTINGS)),
        engine=draw(st.sampled_from(["ideal", "vllm", "sglang", "trtllm"])),
        scheduling=draw(schedulings),
    )


@pytest.mark.parametrize("target", SERVE_EXPORTERS)
@on_drawn(300, made=serving_plans())
def test_any_plan_comes_back_or_is_refused_by_its_field(target, made):
    plan, cfg, piece = made
    try:
        text = export_serve(plan, cfg, piece, target)
    except BadRequest as error:
        said = str(error)
        head = rf"{target} cannot express (\d+ choices of this plan|({'|'.join(FIELDS)}) )"
        assert re.match(head, said), said
        assert all(re.match(rf"  ({'|'.join(FIELDS)}) .*; ", o) for o in said.splitlines()[1:]), (
            said
        )
        return
    assert parse_serve(text, target) == plan


@pytest.mark.parametrize("target", PROGRAMS)
def test_a_plain_plan_is_said_by_flags(target):
    """No note repeats what a flag says, and an edited flag counts."""
    plan, cfg, piece = a_plan()
    text = export_serve(plan, cfg, piece, target)
    for name in ("mesh", "batch", "prefill_chunk", "scheduling.page_size"):
        assert f"# shardwise: {name}:" not in text
    assert parse_serve(text, target) == plan
    seen = {
        "vllm": "--max-num-seqs",
        "sglang": "--max-running-requests",
        "trtllm": "--max_batch_size",
    }[target]
    edited = text.replace(f"{seen}=64", f"{seen}=32")
    assert parse_serve(edited, target).batch == 32


def test_experts_of_both():
    """Eight ranks of attention, the experts over them."""
    plan, cfg, piece = a_plan("moe", mesh={"expert": 8})
    vllm, sglang = (export_serve(plan, cfg, piece, t) for t in ("vllm", "sglang"))
    assert "--tensor-parallel-size=1 " in vllm
    assert "--data-parallel-size=8 " in vllm
    assert "--enable-expert-parallel" in vllm
    assert "--max-num-seqs=8 " in vllm  # of each rank
    for flag in ("--tp-size=8", "--dp-size=8", "--ep-size=8", "--enable-dp-attention"):
        assert flag in sglang
    assert "--max-running-requests=64 " in sglang  # of all
    assert "# not expressed: mesh" in vllm  # prompts are not cut over ranks


def test_ranks_of_trtllm_keep_their_own_sequences():
    """Limits are each rank's, and what no flag says stands in the options that it reads."""
    plan, cfg, piece = a_plan("moe", mesh={"expert": 8})
    text = export_serve(plan, cfg, piece, "trtllm")
    said = ("--tp_size=8 ", "--ep_size=8 ", "--max_batch_size=8 ", "enable_attention_dp: true")
    assert all(words in text for words in said)
    assert "capacity_scheduler_policy: MAX_UTILIZATION" in text
    eager = replace(plan, engine="trtllm", scheduling=replace(plan.scheduling, graphs=False))
    text = export_serve(eager, cfg, piece, "trtllm")
    assert "cuda_graph_config: null" in text
    assert parse_serve(text, "trtllm") == eager


OPTIONS = """cat > options.yaml <<EOF
enable_attention_dp: true
kv_cache_config:
  free_gpu_memory_fraction: 0.8
  enable_block_reuse: false
EOF
"""
COMMAND = """trtllm-serve some/model --tp_size 8 --ep_size 8 --max_batch_size 4 \\
  --extra_llm_api_options options.yaml
"""


def test_a_command_of_ones_own_is_read_with_its_options():
    given = given_fields("moe", MODELS["moe"], parse_slice("h100:8"), (2048, 256))
    plan = parse_serve(OPTIONS + COMMAND, "trtllm", given)
    assert (plan.batch, dict(plan.mesh)) == (32, {"expert": 8})
    assert (plan.scheduling.memory_share, plan.scheduling.prefix_cache) == (0.8, False)
    assert plan.scheduling.admission == "reserve"  # as it does unless told
    with pytest.raises(BadRequest, match="does not hold that file; write"):
        parse_serve(COMMAND, "trtllm", given)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slice_text": "v5e:2x4"}, "it runs on chips of nvidia"),
        ({"mesh": {"data": 2, "tensor": 4}}, "no replicas in one server"),
        ({"slice_text": "2*h100:8", "mesh": {"tensor": 16}}, "of several hosts is started by"),
    ],
)
def test_what_trtllm_lays_out_otherwise_is_refused(changes, said):
    plan, cfg, piece = a_plan(**changes)
    with pytest.raises(BadRequest, match=said):
        export_serve(plan, cfg, piece, "trtllm")


def test_tpus_start_sglang_jax():
    plan, cfg, piece = a_plan(slice_text="v5e:2x4")
    text = export_serve(plan, cfg, piece, "sglang")
    assert "python3 -m sgl_jax.launch_server" in text
    assert "--device=tpu" in text
    assert parse_serve(text, "sglang") == plan


@pytest.mark.parametrize(
    ("target", "choices", "field"),
    [
        ("vllm", {"dtypes": ServeDtypes(kv="int8")}, "dtypes.kv"),
        ("sglang", {"dtypes": ServeDtypes(weights="int8")}, "dtypes.weights"),
        ("vllm", {"scheduling": ServeScheduling(page_size=100)}, "scheduling.page_size"),
        ("vllm", {"scheduling": ServeScheduling(policy="interleaved")}, "scheduling.policy"),
        ("sglang", {"scheduling": ServeScheduling(swap=True)}, "scheduling.swap"),
        ("sglang", {"scheduling": ServeScheduling(order="aged")}, "scheduling.order"),
        ("vllm", {"kv_sharding": "heads_then_batch", "model": "narrow"}, "kv_sharding"),
        ("vllm", {"mesh": {"expert": 4, "tensor": 2}, "model": "moe"}, "mesh"),
        ("vllm", {"mesh": {"data": 8}, "model": "moe"}, "mesh"),
    ],
)
def test_what_a_server_would_run_otherwise_is_refused(target, choices, field):
    model = choices.pop("model", "dense")
    plan, cfg, piece = a_plan("dense" if model == "narrow" else model, **choices)
    if model == "narrow":  # more devices than KV heads
        plan = replace(plan, mesh={"tensor": 2 * fewest_kv_heads(cfg)})
    with pytest.raises(BadRequest, match=f"{target} cannot express {field} "):
        export_serve(plan, cfg, piece, target)


@pytest.mark.parametrize("target", PROGRAMS)
def test_the_longest_sequence_is_said_where_the_cache_is_smaller_than_the_model(target):
    """24 GB beside 16 GB of weights: less than 131,072 tokens of 128 KiB, more than the plan's."""
    flag = LENGTHS[target]
    cfg = load_model("llama-3.1-8b")
    said = {"model": "llama-3.1-8b", "model_hash": model_hash(cfg)}
    plan, _, piece = a_plan(slice_text="rtx4090:1", mesh={})
    plan = replace(plan, **said)
    text = export_serve(plan, cfg, piece, target)
    found = int(re.findall(rf"{flag}=(\d+)", text)[0])
    assert 2048 + 256 <= found < 24e9 / 2**17 / 2
    assert found % 1024 == 0
    assert parse_serve(text, target) == plan
    long = replace(plan, input_length=30_000)
    assert f"{flag}=30720" in export_serve(long, cfg, piece, target)
    with pytest.raises(BadRequest, match=rf"{flag} is 2000, but requests of the plan have 2,304"):
        parse_serve(text.replace(f"{flag}={found}", f"{flag}=2000"), target)
    with pytest.raises(BadRequest, match=f"{flag} is 'long'; write a number"):
        parse_serve(text.replace(f"{flag}={found}", f"{flag}=long"), target)
    wide, _, piece = a_plan(slice_text="h200:1", mesh={})
    assert flag not in export_serve(replace(wide, **said), cfg, piece, target)


@pytest.mark.parametrize("target", PROGRAMS)
def test_what_no_plan_says_is_refused(target):
    plan, cfg, piece = a_plan()
    text = export_serve(plan, cfg, piece, target)
    with pytest.raises(BadRequest, match="cannot express the flag --swap-space"):
        parse_serve(re.sub("(tensor-parallel|tp).size=8", r"\g<0> --swap-space=4", text), target)
    with pytest.raises(BadRequest, match=target):
        parse_serve("nonsense", target)
    with pytest.raises(BadRequest, match="was made for another"):
        export_serve(plan, MODELS["moe"], piece, target)
    with pytest.raises(BadRequest, match="unknown export target for serving plans 'vlm'"):
        export_serve(plan, cfg, piece, "vlm")


def test_a_pool_of_prompts_without_notes_has_the_chips_that_its_mesh_fills():
    prompts = PrefillServer(slice="h100:2", mesh={"tensor": 2}, box=(2,))
    plan, cfg, piece = a_plan(prefill_replicas=1, prefill=prompts, routing="shortest_queue")
    text = export_serve(plan, cfg, piece, "vllm")
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    again = parse_serve(plain, "vllm", given_fields(plan.model, cfg, piece))
    assert again.prefill == prompts


def _started(text, folder, role, **variables):
    """The environment and arguments of every server that a script starts, with the servers stubbed
    on PATH."""
    stub = folder / "stub"
    stub.write_text(
        '#!/bin/bash\nset -- "$@"\nflock "$LOG" bash -c \'printf "%s %s %s\\n" "$1" "$2" "$3" >> '
        '"$LOG"\' - "$CUDA_VISIBLE_DEVICES" "${VLLM_NIXL_SIDE_CHANNEL_PORT:--}" "$*"\n'
    )
    stub.chmod(0o755)
    for name in ("vllm", "python3", "trtllm-serve"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(stub)
    (folder / "run.sh").write_text(text)
    (folder / "log").write_text("")
    env = {"PATH": f"{folder}:/usr/bin:/bin", "MODEL": "m", "LOG": str(folder / "log"), **variables}
    subprocess.run(["bash", str(folder / "run.sh"), role], check=True, env=env, timeout=20)
    lines = sorted((folder / "log").read_text().splitlines())
    return [
        (line.split()[0], line.split()[1], re.search(r"--port=(\d+)", line)[1]) for line in lines
    ]


@pytest.mark.parametrize("target", PROGRAMS)
def test_servers_of_one_host_have_devices_and_ports_of_their_own(target, tmp_path):
    plan, cfg, piece = a_plan(
        slice_text="h100:2", mesh={"tensor": 2}, replicas=3, prefill_chunk=2048
    )
    plan = replace(plan, scheduling=ServeScheduling(policy="chunked", page_size=64))
    text = export_serve(plan, cfg, piece, target)
    assert parse_serve(text, target) == plan
    assert "not expressed: replicas" not in text
    started = _started(text, tmp_path, "serve")
    assert [(devices, port) for devices, _, port in started] == [
        ("0,1", "8001"),
        ("2,3", "8002"),
        ("4,5", "8003"),
    ]


def test_more_servers_than_a_host_has_are_numbered_over_hosts(tmp_path):
    """By Slurm's number of the host, or one that is given."""
    plan, cfg, piece = a_plan(slice_text="h100:4", mesh={"tensor": 4}, replicas=3)
    plan = replace(plan, scheduling=ServeScheduling(policy="chunked", page_size=64))
    text = export_serve(plan, cfg, piece, "vllm")
    assert parse_serve(text, "vllm") == plan
    assert [devices for devices, *_ in _started(text, tmp_path, "serve")] == ["0,1,2,3", "4,5,6,7"]
    for last in ({"SLURM_NODEID": "1"}, {"HOST": "1"}):
        assert [port for *_, port in _started(text, tmp_path, "serve", **last)] == ["8001"]


def test_both_pools_of_one_host_lie_beside_each_other(tmp_path):
    plan, cfg, piece = a_plan(
        slice_text="h100:2", mesh={"tensor": 2}, replicas=2, prefill_replicas=1
    )
    plan = replace(plan, scheduling=ServeScheduling(policy="chunked", page_size=64))
    text = export_serve(plan, cfg, piece, "vllm")
    assert parse_serve(text, "vllm") == plan
    first, second = (_started(text, tmp_path, role) for role in ("prefill", "decode"))
    assert first == [("0,1", "5600", "8001")]
    assert second == [("2,3", "5601", "8002"), ("4,5", "5602", "8003")]
    assert "--prefill http://localhost:8001 --decode http://localhost:8002" in text
    of_sglang = export_serve(plan, cfg, piece, "sglang")
    assert "--disaggregation-bootstrap-port=$((8998 + N))" in of_sglang
    assert "--prefill http://localhost:8001 8998 --decode http://localhost:8002" in of_sglang
    assert parse_serve(of_sglang, "sglang") == plan


@pytest.mark.parametrize(
    ("loop", "many"),
    [("for N in $(seq 0 3)", 4), ("for i in 0 1; do", 2), ("for i in $(seq 4); do", 4), ("", 1)],
)
def test_the_servers_of_a_loop_of_ones_own_are_counted(loop, many):
    command = "vllm serve m --tensor-parallel-size 2 --port=80$i"
    text = (
        f"{loop}\n{'do ' if loop and 'do' not in loop else ''}{command}{' & done' if loop else ''}"
    )
    cfg = MODELS["dense"]
    given = given_fields("dense", cfg, parse_slice("h100:2"), (2048, 256))
    assert parse_serve(text, "vllm", given).replicas == many
