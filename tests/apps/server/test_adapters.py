"""Names of models: which one a request gets, what is listed, and what `--lora-modules` takes."""

from dataclasses import replace

import httpx
import pytest
from tests.apps.server.made import folder_of, nothing_is_held, replica_of

from shardwise.apps.server.run import running
from shardwise.commands.run.serving import ServeModelRequest
from shardwise.errors import BadRequest


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    replica = replica_of(folder_of(tmp_path_factory.mktemp("checkpoint")))
    asked, add = [], replica.engine.add

    def noted(*given, variant=0, **more):
        asked.append(variant)
        return add(*given, **more)

    replica.engine.add = noted
    with running(replace(replica, adapters=("legal", "support"))) as (state, url):
        with httpx.Client(base_url=url, timeout=30) as client:
            yield client, asked
        nothing_is_held(state)


@pytest.mark.parametrize(("name", "number"), [("mock", 0), ("legal", 1), ("support", 2), (None, 0)])
def test_a_name_chooses_the_weights(made, name, number):
    client, asked = made
    bodies = {
        "/v1/completions": {"prompt": "a", "max_tokens": 1},
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": "a"}],
            "max_completion_tokens": 1,
        },
        "/v1/responses": {"input": "a", "max_output_tokens": 1},
    }
    for path, body in bodies.items():
        found = client.post(path, json={**body, "model": name})
        assert found.json()["model"] == (name or "mock")
        assert asked.pop() == number


def test_all_are_listed_and_no_others_known(made):
    client, _ = made
    cards = client.get("/v1/models").json()["data"]
    assert [(c["id"], c["parent"]) for c in cards] == [
        ("mock", None),
        ("legal", "mock"),
        ("support", "mock"),
    ]
    assert client.get("/v1/models/legal").json()["root"] == "mock"
    answer = client.post("/v1/completions", json={"prompt": "a", "model": "other"})
    assert answer.status_code == 404
    assert "'mock' and 'legal' and 'support'" in answer.json()["error"]["message"]


def test_a_name_and_a_folder_are_one_word():
    asked = ServeModelRequest(path="x", lora_modules=("legal=a/b", "support=c=d"))
    assert {name: str(path) for name, path in asked.adapters.items()} == {
        "legal": "a/b",
        "support": "c=d",
    }
    for words, said in ((("legal",), "no NAME=DIR"), (("a=b", "a=c"), "'a' twice")):
        with pytest.raises(BadRequest, match=said):
            _ = ServeModelRequest(path="x", lora_modules=words).adapters
