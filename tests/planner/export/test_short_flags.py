"""A server's short flags are read as the long ones; none is dropped unseen."""

import pytest

from shardwise.errors import BadRequest
from shardwise.planner.export.serving import parse_serve, read_script
from shardwise.planner.export.vllm import VLLM

START = "vllm serve some/model --max-num-seqs 64 "


@pytest.mark.parametrize(
    "words",
    [
        "--tensor-parallel-size 8",
        "--tensor-parallel-size=8",
        "--tensor_parallel_size 8",
        "-tp 8",
        "-tp=8",
    ],
)
def test_a_degree_in_every_spelling(words):
    assert read_script(VLLM, START + words)["mesh"] == {"tensor": 8}


def test_several_short_flags():
    said = read_script(VLLM, START + "-tp 4 -dp=2 -ep -q fp8")
    assert said["mesh"] == {"expert": 8}
    assert said["dtypes.weights"] == "fp8"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-zz 2", "unknown short flag of vLLM '-zz'"),
        ("-tp8", "unknown short flag of vLLM '-tp8'"),
        ("-tp 4 --tensor-parallel-size 8", "--tensor-parallel-size is given twice"),
    ],
)
def test_what_is_not_read_is_refused(words, said):
    with pytest.raises(BadRequest, match=said):
        read_script(VLLM, START + words)


LOAD = {"slice": "h100:4", "input_length": 1024, "output_length": 128}


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("vllm", "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 --trust-remote-code"),
        ("vllm", "python -m vllm.entrypoints.openai.api_server --model=llama-3.1-70b -tp 4"),
        ("sglang", "python -m sglang.launch_server --model-path llama-3.1-70b --tp 4"),
    ],
)
def test_a_server_as_people_start_it(target, text):
    plan = parse_serve(text, target, LOAD)
    assert (plan.model, plan.degree("tensor")) == ("llama-3.1-70b", 4)
