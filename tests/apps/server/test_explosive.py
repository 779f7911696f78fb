"""Requests whose text explodes: each is refused within its limits, and nobody else waits."""

import json
import threading
import time

import httpx
import pytest
from tests.apps.server.made import folder_of, nothing_is_held, replica_of, tokenizer
from tests.runtime.engine.mock import MockExecutor

from shardwise.apps.server.run import running

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if nested %}{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}"
    "{% endfor %}{% endfor %}{% endfor %}{% endif %}"
    "{% if wide %}{% set x = 'a' * wide * 1000000 %}{{ x | length }}{% endif %}"
    "{% if self is number %}{{ self }}{% endif %}"
)
MULTIPLE = {"type": "integer", "multipleOf": 3999971}
HOSTILE = {
    "multiples": {"structured_outputs": {"json": MULTIPLE}},
    "self": {"structured_outputs": {"json": {"$ref": "#"}}},
    "loops": {"chat_template_kwargs": {"nested": True}},
    "width": {"chat_template_kwargs": {"wide": 1000}},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = folder_of(tmp_path_factory.mktemp("checkpoint"), chat_template=TEMPLATE)
    with running(replica_of(folder, ends=True)) as found:
        yield found
        nothing_is_held(found[0])


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server[1], timeout=60) as made:
        yield made


def chat(client, **fields):
    messages = [{"role": "user", "content": "the fox"}]
    return client.post("/v1/chat/completions", json={"messages": messages, **fields})


def refused(answer, param):
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert len(error["message"]) < 500
    return error["message"]


def beside(client, work):
    """The longest that /health took while something else is worked on."""
    done, slowest = threading.Event(), 0.0

    def run():
        try:
            work()
        finally:
            done.set()

    thread = threading.Thread(target=run)
    thread.start()
    while not done.is_set():
        begun = time.monotonic()
        assert client.get("/health").status_code == 200
        slowest = max(slowest, time.monotonic() - begun)
        time.sleep(0.01)
    thread.join()
    return slowest


@pytest.mark.parametrize(
    ("kind", "param", "says"),
    [
        ("multiples", "structured_outputs", "takes more than 1 s or"),
        ("self", "structured_outputs", "only the form itself or the end may come next"),
        ("loops", "messages", "with the chat template takes more than"),
        ("width", "messages", "with the chat template takes more than"),
    ],
)
def test_what_explodes_is_refused_in_plain_words(client, server, kind, param, says):
    answers = []
    with httpx.Client(base_url=server[1], timeout=60) as other:
        slowest = beside(client, lambda: answers.append(chat(other, **HOSTILE[kind])))
    assert says in refused(answers[0], param)
    assert slowest < 2


def test_a_client_that_leaves_takes_its_work_along(client, server):
    for name in ("multiples", "loops"):
        with (
            httpx.Client(base_url=server[1], timeout=0.3) as other,
            pytest.raises(httpx.ReadTimeout),
        ):
            chat(other, **HOSTILE[name])
    forks = server[0].replica.text.jobs._child
    end = time.monotonic() + 10
    while forks.working and time.monotonic() < end:
        time.sleep(0.01)
    assert not forks.working
    assert chat(client, max_tokens=2).status_code == 200


def test_a_variable_of_a_template_may_have_any_name(client):
    """`self` was a mistake of the server's own."""
    assert chat(client, chat_template_kwargs={"self": 1}, max_tokens=2).status_code == 200
    more = {"chat_template_kwargs": {"loop": 1, "text": 2, "more": {}, "do": "x", "range": 3}}
    assert chat(client, **more, max_tokens=2).status_code == 200


def test_a_prompt_that_is_too_long_by_its_bytes_is_not_read(client, server):
    texts = {"prompt": "the quick brown fox " * 380_000}
    answers = []
    with httpx.Client(base_url=server[1], timeout=60) as other:
        slowest = beside(client, lambda: answers.append(other.post("/v1/completions", json=texts)))
    said = refused(answers[0], "prompt")
    assert "7,600,000 bytes of text, and the model takes 1,024 tokens" in said
    assert slowest < 2


def test_a_text_is_read_beside_the_event_loop(client, server):
    texts = {"prompt": "the quick brown fox " * 40_000}
    answers = []
    with httpx.Client(base_url=server[1], timeout=60) as other:
        slowest = beside(client, lambda: answers.append(other.post("/tokenize", json=texts)))
    assert answers[0].json()["count"] == 160_002
    assert slowest < 1


RECURSIVE = {
    "anyOf": [
        {"type": "object", "properties": {"a": {"$ref": "#"}, f"b{i}": {"type": "string"}}}
        for i in range(150)
    ]
}
"""It can be read, and goes on in over 2,000 ways after its first brace."""


@pytest.mark.parametrize("stream", [False, True])
def test_a_form_that_fails_while_it_is_written_is_the_requests_error(client, stream):
    """It was a 500, or an error within a 200."""
    form = {"structured_outputs": {"json": RECURSIVE}}
    fields = {"prompt": "the", "max_tokens": 90, "stream": stream}
    answer = client.post("/v1/completions", json=fields | form)
    if answer.text.startswith("data: "):  # whitespace came first
        error = json.loads(answer.text.split("\n\n")[-3][6:])["error"]
        assert (error["code"], error["param"]) == (400, "response_format")
        said = error["message"]
    else:
        said = refused(answer, "response_format")
    assert "it can continue in too many ways" in said
    assert client.post("/v1/completions", json={"prompt": "the"}).status_code == 200


def test_ids_beyond_the_models_own_vocabulary_are_refused(tmp_path):
    """A tokenizer may have more tokens than the model: those were looked up past its end."""
    replica = replica_of(folder_of(tmp_path))
    for one in replica.engine.replicas:
        executor = one.executor
        assert isinstance(executor, MockExecutor)
        executor.vocabulary = 290
    replica.engine.vocabulary = 290
    with running(replica) as (_, url), httpx.Client(base_url=url, timeout=30) as client:
        answer = client.post("/v1/completions", json={"prompt": [290, 3], "max_tokens": 1})
        assert "prompt has token 290, which is not below 290" in refused(answer, "prompt")
        assert client.post("/v1/completions", json={"prompt": [289]}).status_code == 200
        word = tokenizer().decode([tokenizer().get_vocab_size() - 1])
        answer = client.post("/v1/completions", json={"prompt": word, "max_tokens": 1})
        assert "which is not below 290" in refused(answer, "prompt")


def test_an_engine_that_meets_a_token_it_does_not_have_refuses_it(server):
    from shardwise.errors import BadRequest

    engine = server[0].replica.engine
    for prompt in ([303], [-1], [2**31]):
        with pytest.raises(BadRequest, match=f"token {prompt[0]}; .* below 303"):
            engine.add(prompt)


def test_a_panic_while_a_form_is_written_ends_its_answer_alone(client, server, monkeypatch):
    """Rust's is no Exception: it ended the engine's thread, and all answers hung."""
    from shardwise.runtime.text.grammar import Constraint

    class Panic(BaseException):
        pass

    Panic.__module__ = "pyo3_runtime"

    def panics(self):
        raise Panic("called `unwrap` on None")

    monkeypatch.setattr(Constraint, "_bitmask", panics, raising=True)
    body = {"prompt": "the", "max_tokens": 5, "structured_outputs": {"regex": "[a-z]+"}}
    for stream in (False, True):
        answer = client.post("/v1/completions", json={**body, "stream": stream})
        said = refused(answer, "response_format")
        assert "takes too much" in said
    assert client.post("/v1/completions", json={"prompt": "the"}).status_code == 200
