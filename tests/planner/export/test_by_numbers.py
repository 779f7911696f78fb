"""MaxText's base model by its numbers and its scale, and programs around Megatron."""

import pytest

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model, params_total
from shardwise.planner.export import parse_export
from shardwise.planner.export.known_flags import target_of, unread_notes

SCALED = """python3 -m MaxText.train MaxText/configs/base.yml run_name=r per_device_batch_size=2 \\
  ici_fsdp_parallelism=-1 max_target_length=2048 global_parameter_scale=SCALE
"""
POD = """apiVersion: batch/v1
kind: Job
spec:
  template:
    spec:
      containers:
      - name: train
        env:
        - {name: BATCH, value: "4"}
        command: ["bash", "-c"]
        args:
        - |
          _stop() (kill -SIGTERM $! 2>/dev/null;);
          trap _stop SIGTERM
          python3 -m MaxText.train base.yml model_name=llama3-8b per_device_batch_size=${BATCH} \\
            ici_fsdp_parallelism=-1 max_target_length=8192
"""
WORKER = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  containers:
  - command:
    - torchrun
    - --nproc_per_node=$GPUS
    - pretrain_gpt.py
    - --num-layers=32
    - --hidden-size=4096
    - --num-attention-heads=32
    - --vocab-size=32000
    - --seq-length=4096
    - --micro-batch-size=2
    - --global-batch-size=64
    - --bf16
"""


@pytest.mark.parametrize(
    ("scale", "layers", "width", "heads"),
    [
        (1, 16, 2048, 16),
        (2, 16, 2048, 32),
        (4, 16, 4096, 32),
        (8, 32, 4096, 32),
        (64, 64, 8192, 64),
    ],
)
def test_maxtexts_scale_makes_the_base_model_larger(scale, layers, width, heads):
    """get_individual_scales of MaxText's configs/types.py: a third of the power each."""
    text = SCALED.replace("SCALE", str(scale))
    cfg = load_model(parse_export(text, "maxtext", piece=parse_slice("v5p:2x2x2")).model)
    attention = cfg.groups[0].attention
    assert (cfg.layers, cfg.d_model, attention.heads) == (layers, width, heads)
    assert not any("scale" in line for line in unread_notes(text, "maxtext"))


def test_a_scale_multiplies_parameters_as_its_name_says():
    one, eight = (
        params_total(load_model(parse_export(SCALED.replace("SCALE", s), "maxtext",
                                             piece=parse_slice("v5p:2x2x2")).model))
        for s in ("1", "8")
    )  # fmt: skip
    assert 7 < eight / one < 8.1


def test_a_scale_that_is_no_power_of_two_is_refused():
    with pytest.raises(BadRequest, match="global_parameter_scale is '3'; write a power of 2"):
        parse_export(SCALED.replace("SCALE", "3"), "maxtext", piece=parse_slice("v5p:2x2x2"))


def test_what_a_manifests_container_runs_is_read():
    assert target_of(POD) == "maxtext"
    plan = parse_export(POD, "maxtext", piece=parse_slice("v5p:2x2x2"))
    assert (plan.model, plan.global_batch_sequences, plan.sequence_length) == (
        "llama-3-8b",
        32,
        8192,
    )


def test_a_manifests_list_of_words_is_a_launch_line():
    assert target_of(WORKER) == "megatron"
    plan = parse_export(WORKER, "megatron", piece=parse_slice("h100:8"))
    assert (plan.global_batch_sequences, plan.microbatches) == (64, 4)
