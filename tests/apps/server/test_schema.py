"""Requests drawn from /openapi.json, and spoilt: no answer of 5xx, every refusal names a field."""

import json
from random import Random

import httpx
import pytest
from tests.apps.server.made import folder_of, replica_of

from shardwise.apps.server.fields import BODIES
from shardwise.apps.server.run import running

VALUES = [None, True, -1, 0, 1, 3, 2**40, 1e308, 0.5, "", "a", "7", [], [1], ["a"], [[]], {}]
VALUES += [{"a": 1}, [None], "🙂", [{"role": "user", "content": "x"}], {"type": "text"}]
GOOD = {
    "/v1/completions": {"prompt": "the cat", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5, 6]},
}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    replica = replica_of(folder_of(tmp_path_factory.mktemp("checkpoint")))
    with running(replica) as (_, url), httpx.Client(base_url=url, timeout=30) as made:
        yield made


def spoilt(draw, path, fields):
    body = dict(GOOD[path])
    for _ in range(draw.randint(1, 2)):
        name = draw.choice([*fields, "unknown"])
        body[name] = draw.choice(VALUES)
    return body


def check(client, path, body):
    """4xx with a field of the body or one that is missing; 200 whole."""
    headers = {"Content-Type": "application/json"}
    answer = client.post(path, content=json.dumps(body), headers=headers)
    said = json.dumps(body)[:300]
    assert answer.status_code < 500, (path, said, answer.text)
    if answer.status_code == 200:
        return False
    error = answer.json()["error"]
    fields = BODIES[path].model_fields
    assert error["param"] in body or error["param"] in fields, (said, error)
    assert error["param"] in error["message"] or error["param"] == "model", (said, error)
    return True


def run(client, count):
    schema = client.get("/openapi.json").json()["components"]["schemas"]
    draw, refused = Random(4), 0
    for _ in range(count):
        path = draw.choice(list(GOOD))
        refused += check(
            client, path, spoilt(draw, path, schema[BODIES[path].__name__]["properties"])
        )
    assert count * 0.3 < refused < count


def test_bad_requests_are_refused_by_name(client):
    run(client, 120)


@pytest.mark.slow
def test_two_thousand_bad_requests_are_refused_by_name(client):
    run(client, 2000)


def test_the_document_describes_what_is_there(client):
    found = client.get("/openapi.json").json()
    assert set(found["paths"]) >= set(BODIES) | {"/health", "/metrics", "/v1/models"}
    for path, model in BODIES.items():
        body = found["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        name = body["schema"]["$ref"].rpartition("/")[2]
        described = found["components"]["schemas"][name]
        assert set(described["properties"]) == set(model.model_fields)
        assert described["additionalProperties"] is True
    for path in found["paths"]:
        if path not in BODIES:
            assert client.get(path).status_code == 200
