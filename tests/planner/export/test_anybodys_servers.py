"""Servers as people start them: docker, Kubernetes, Compose, the values of a Helm chart."""

import math

import pytest

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.export.serving import given_fields, parse_serve, unread_flags
from shardwise.plans import ServePlan

DOCKER = """NAME=Qwen/Qwen3-32B
docker run --gpus all --shm-size 32g -p 8000:8000 --ipc=host lmsysorg/sglang:latest \\
  python3 -m sglang.launch_server --model-path $NAME --host 0.0.0.0 --port 8000 \\
  --tp 2 --dp-size 4 --max-running-requests 64 --mem-fraction-static 0.7 \\
  --schedule-conservativeness 0.1
"""
IMAGE = "docker run --gpus all vllm/vllm-openai:v0.9.0 --model Qwen/Qwen3-32B --dtype auto -tp 4\n"
DEPLOYMENT = """apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  replicas: 3
  template:
    spec:
      containers:
      - name: proxy
        image: nginx
      - name: inference-server
        image: docker.io/vllm/vllm-openai:v0.10.0
        args: ["--model=$(MODEL_ID)", "--tensor-parallel-size=2",
          "--max-num-seqs=4", "--swap-space=16"]
        env:
        - {name: MODEL_ID, value: google/gemma-3-27b-it}
        resources:
          limits: {cpu: "10", nvidia.com/gpu: "2"}
      nodeSelector:
        cloud.google.com/gke-accelerator: nvidia-a100-80gb
"""
GROUP = """apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        nodeSelector: {cloud.google.com/gke-accelerator: nvidia-h100-mega-80gb}
        containers:
        - name: leader
          image: vllm/vllm-openai:v0.8.5
          command:
          - sh
          - -c
          - "bash multi-node-serving.sh leader; python3 -m vllm.entrypoints.openai.api_server
             --model deepseek-ai/DeepSeek-R1 --tensor-parallel-size 8 --pipeline-parallel-size 2"
          resources: {limits: {nvidia.com/gpu: "8"}}
"""
COMPOSE = """services:
  llm:
    image: vllm/vllm-openai:latest
    command: --model Qwen/Qwen3-32B --tensor-parallel-size 4 --enforce-eager
"""
CHART = """servingEngineSpec:
  modelSpec:
  - name: chat
    repository: vllm/vllm-openai
    modelURL: Qwen/Qwen3-32B
    vllmConfig: {tensorParallelSize: 4, maxNumSeqs: 32, extraArgs: ["--enforce-eager"]}
"""


def read(text: str, target: str, on: str = "") -> ServePlan:
    piece = parse_slice(on) if on else None
    return parse_serve(text, target, given_fields(None, None, piece, (1024, 128)))


@pytest.mark.parametrize(
    ("text", "target", "on", "model", "mesh", "word"),
    [
        (DOCKER, "sglang", "h100:8", "qwen3-32b", {"data": 4, "tensor": 2}, "--tp 2"),
        (IMAGE, "vllm", "h100:4", "qwen3-32b", {"tensor": 4}, "-tp 4"),
        (COMPOSE, "vllm", "h100:4", "qwen3-32b", {"tensor": 4}, "--tensor-parallel-size 4"),
        (CHART, "vllm", "h100:4", "qwen3-32b", {"tensor": 4}, "tensorParallelSize: 4"),
        (DEPLOYMENT, "k8s", "", "gemma-3-27b", {"tensor": 2}, "--tensor-parallel-size=2"),
        (DEPLOYMENT, "vllm", "a100:2", "gemma-3-27b", {"tensor": 2}, "--tensor-parallel-size=2"),
        (GROUP, "k8s", "", "deepseek-r1", {"stage": 2, "tensor": 8}, "--tensor-parallel-size 8"),
    ],
)
def test_a_server_is_read_of_what_stands_around_it(text, target, on, model, mesh, word):
    plan = read(text, target, on)
    assert (plan.model, plan.mesh) == (model, mesh)
    assert word in text
    others = {name: degree for name, degree in mesh.items() if name != "tensor"}
    many = math.prod(others.values())
    alone = read(text.replace(word, f"{word[:-1]}1"), target, f"h100:{many}")
    assert alone.mesh == others


def test_a_manifest_says_its_chips_and_its_copies():
    plan, group = read(DEPLOYMENT, "k8s"), read(GROUP, "k8s")
    assert (plan.slice, plan.replicas, plan.batch) == ("a100:2", 3, 4)
    assert group.slice == "2*h100:8"
    assert read(DEPLOYMENT.replace("kind: Deployment", "kind: Deployment\t"), "k8s") == plan
    assert load_model(group.model).name == "deepseek-r1"


@pytest.mark.parametrize(
    ("text", "target", "flag"),
    [
        (DOCKER, "sglang", "--schedule-conservativeness = '0.1'"),
        (DEPLOYMENT, "k8s", "--swap-space = '16'"),
        (CHART.replace("maxNumSeqs", "loraSlots"), "vllm", "--lora-slots = '32'"),
    ],
)
def test_a_flag_that_no_plan_says_is_told(text, target, flag):
    assert [f"{flag} is unknown and was not read"] == unread_flags(text, target)


def test_two_servers_unlike_each_other_are_not_read_as_one():
    two = COMPOSE + "  other:\n    image: vllm/vllm-openai:latest\n    command: --model a/b\n"
    with pytest.raises(BadRequest, match="starts 2 servers that differ"):
        read(two, "vllm", "h100:4")
