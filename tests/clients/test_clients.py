"""The light clients against a small engine, and the record of the heavy ones."""

import json
import sys
from datetime import date
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from llama_folder import write_llama
from tests.clients import curl, openai_sdk

from shardwise.apps.server.run import running
from shardwise.commands.run.serving import ServeModelRequest, open_replica

HERE = Path(__file__).parent
FIGURES = {
    "openai_sdk": {"logprobs", "errors"},
    "curl": {"events"},
    "vllm_bench": {"random", "prefix_repetition"},
    "guidellm_load": {"successful", "errored", "output_tokens_per_second"},
    "lm_eval_harness": {"local-completions", "local-chat-completions"},
    "sglang_bench": {"completions", "chat"},
    "aider_edit": {"no_stream", "stream"},
    "vllm_oracle": {"prompts", "equal", "ties", "places", "farthest_logprob"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = write_llama(tmp_path_factory.mktemp("llama") / "llama", "least")
    asked = ServeModelRequest(path=str(folder), sequences=4, prefill_chunk=64, seq=256)
    with running(open_replica(asked, lambda _: None)) as (_, url):
        yield url, folder


@pytest.mark.parametrize("client", [pytest.param(openai_sdk, marks=pytest.mark.slow), curl])
def test_a_light_client_is_content(server, client):
    found = client.run(*server)
    assert FIGURES[client.__name__.rpartition(".")[2]] < set(found)


def test_the_record_has_every_client():
    record = json.loads((HERE / "record.json").read_text())
    assert set(record) == set(FIGURES)
    for name, found in record.items():
        assert set(found) == FIGURES[name] | {"date", "version"}
        assert date.fromisoformat(found["date"]) <= date.today()
        assert hasattr(import_module(f"tests.clients.{name}"), "run")
        assert name in (HERE / "README.md").read_text()


def test_the_record_is_of_equal_answers():
    oracle = json.loads((HERE / "record.json").read_text())["vllm_oracle"]
    assert oracle["prompts"] == 200
    assert oracle["equal"] + oracle["ties"] == 200
    assert oracle["ties"] <= 2
    assert oracle["farthest_logprob"] < 1e-3
