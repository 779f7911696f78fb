"""The API, asked as its clients ask it: the openai package and plain HTTP."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Event

import httpx
import pytest
from tests.apps.server.made import (
    CHAT,
    PROMPT,
    SPECIAL,
    folder_of,
    nothing_is_held,
    replica_of,
    text_after,
)

from shardwise.apps.server import gate
from shardwise.apps.server.run import running


def test_a_completion_is_the_engines(server, sdk):
    state, _ = server
    prompt = state.replica.text.encode("the quick")
    found = sdk.completions.create(model="mock", prompt="the quick", max_tokens=20, temperature=0)
    assert found.choices[0].text == text_after(state, prompt, 20)[1]
    assert found.choices[0].finish_reason == "length"
    usage = found.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), 20)
    assert usage.total_tokens == len(prompt) + 20
    by_tokens = sdk.completions.create(model="mock", prompt=prompt, max_tokens=20)
    assert by_tokens.choices[0].text == found.choices[0].text


def test_a_stream_says_the_same_piece_by_piece(sdk):
    asked = {"model": "mock", "prompt": "the dog", "max_tokens": 40}
    whole = sdk.completions.create(**asked)
    events = list(
        sdk.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    parts = [event for event in events if event.choices]
    assert "".join(e.choices[0].text for e in parts) == whole.choices[0].text
    assert [e.choices[0].finish_reason for e in parts][-1] == "length"
    assert len(parts) > 2
    assert all(e.usage is None for e in parts)
    assert events[-1].usage.completion_tokens == 40


def test_prompts_and_answers_have_their_own_choices(server, sdk):
    state, _ = server
    found = sdk.completions.create(model="mock", prompt=["the cat", "sat"], n=3, max_tokens=5)
    assert [choice.index for choice in found.choices] == list(range(6))
    for i, choice in enumerate(found.choices):
        prompt = state.replica.text.encode(["the cat", "sat"][i // 3])
        assert choice.text == text_after(state, prompt, 5)[1]
    assert found.usage.completion_tokens == 30
    streamed = sdk.completions.create(
        model="mock", prompt=["the cat", "sat"], n=3, max_tokens=5, stream=True
    )
    texts = dict.fromkeys(range(6), "")
    for event in streamed:
        texts[event.choices[0].index] += event.choices[0].text
    assert list(texts.values()) == [choice.text for choice in found.choices]


def test_a_second_turn_is_cached(sdk):
    asked = {"model": "mock", "prompt": list(range(10, 80)), "max_tokens": 2}
    first, second = (sdk.completions.create(**asked).usage for _ in range(2))
    assert first.prompt_tokens_details.cached_tokens == 0
    assert second.prompt_tokens_details.cached_tokens == 64


def test_echo_and_logprobs_stand_token_by_token(server, sdk):
    """As lm-eval reads them: the prompt's first token has none."""
    prompt = server[0].replica.text.encode("the fox")
    found = sdk.completions.create(
        model="mock", prompt="the fox", max_tokens=1, echo=True, logprobs=2
    ).choices[0]
    logprobs = found.logprobs
    assert found.text.startswith("the fox")
    assert len(logprobs.tokens) == len(prompt) + 1
    assert logprobs.token_logprobs == [None] + [0.0] * len(prompt)
    assert logprobs.top_logprobs[0] is None
    assert all(len(top) == 2 for top in logprobs.top_logprobs[1:])
    alone = sdk.completions.create(
        model="mock", prompt="the fox", max_tokens=0, echo=True, logprobs=0
    )
    assert alone.choices[0].text == "the fox"
    assert len(alone.choices[0].logprobs.tokens) == len(prompt)
    assert alone.usage.completion_tokens == 0


def parts_of_a_character(state):
    """Three tokens that are one character together."""
    prompt = state.replica.text.encode("\u20ac", special=False)
    assert len(prompt) == 3
    return prompt


def test_bytes_of_a_report_are_those_of_the_token(server, sdk):
    """Of a token that is a part of a character, and with names that are numbers."""
    text = server[0].replica.text
    parts = parts_of_a_character(server[0])
    assert b"".join(text.token_bytes(token) for token in parts) == "\u20ac".encode()
    assert text.token_text(parts[0]) == "bytes:\\xe2"
    for more in ({}, {"return_tokens_as_token_ids": True}):
        found = sdk.chat.completions.create(
            model="mock",
            messages=[{"role": "user", "content": "a"}],
            max_tokens=40,
            logprobs=True,
            extra_body=more,
        ).choices[0]
        written = b"".join(bytes(entry.bytes) for entry in found.logprobs.content)
        assert written.decode(errors="replace") == found.message.content


def test_offsets_are_places_in_the_text_streamed_or_whole(server, sdk):
    prompt = [*server[0].replica.text.encode("the fox"), *parts_of_a_character(server[0])]
    asked = {"model": "mock", "prompt": prompt, "max_tokens": 40, "echo": True, "logprobs": 1}
    whole = sdk.completions.create(**asked).choices[0]
    parts = [part.choices[0] for part in sdk.completions.create(**asked, stream=True)]
    offsets = whole.logprobs.text_offset
    assert offsets == [at for part in parts if part.logprobs for at in part.logprobs.text_offset]
    assert whole.text == "".join(part.text for part in parts)
    named = list(zip(whole.logprobs.tokens, offsets, strict=True))
    spelt = [
        (token, at) for token, at in named[1:] if token[:6] != "bytes:" and token not in SPECIAL
    ]
    assert len(spelt) > 5
    assert [token for token, at in spelt if not whole.text[at:].startswith(token)] == []
    begin = whole.text.index("\u20ac")
    assert [at for token, at in named if token.startswith("bytes:")][:3] == [begin] * 3


def test_usage_of_a_stream_is_of_what_was_sent(sdk):
    asked = {"model": "mock", "prompt": [5, 6], "max_tokens": 6, "n": 3, "stream": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = list(sdk.completions.create(**asked, stream_options=options, logprobs=0))
    given = 0
    for event in events:
        given += sum(len(choice.logprobs.tokens) for choice in event.choices)
        assert event.usage.completion_tokens == given
    assert given == 18


@pytest.mark.parametrize(
    "more",
    [
        {"function_call": None, "modalities": ["text"], "verbosity": "low"},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
        {"function_call": "none", "zzz": {"a": 1}, "prompt_cache_retention": "24h"},
    ],
)
def test_fields_of_no_effect_are_ignored_and_named_in_the_log(client, monkeypatch, more):
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    said = {"role": "assistant", "content": "b", "reasoning": "r", "id": "m1", "xyz": [{}]}
    body = {**CHAT, "messages": [{"role": "user", "content": [part]}, said], "max_tokens": 1}
    logged = []
    monkeypatch.setattr(gate.log, "info", lambda event, extra: logged.append(extra["fields"]))
    assert client.post("/v1/chat/completions", json={**body, **more}).status_code == 200
    end = time.monotonic() + 10
    while not logged and time.monotonic() < end:
        time.sleep(0.01)
    ignored = logged[0]["ignored"]
    assert "xyz" in ignored
    assert ("zzz" in ignored) == ("zzz" in more)
    assert ("verbosity" in ignored) == ("verbosity" in more)


def test_one_answer_of_one_is_the_best_of_it(client):
    assert client.post("/v1/completions", json={**PROMPT, "best_of": 1}).status_code == 200


def test_a_stop_string_ends_the_answer_before_it(server, sdk):
    state, _ = server
    tokens, text = text_after(state, state.replica.text.encode("a"), 60)
    at = next(
        i
        for i in range(8, 50)
        if text.index(text[i : i + 2]) == i and "\ufffd" not in text[i : i + 2]
    )
    stop = text[at : at + 2]
    for stream in (False, True):
        asked = {"model": "mock", "prompt": "a", "max_tokens": 60, "stop": ["zzz", stop]}
        if stream:
            events = list(sdk.completions.create(**asked, stream=True))
            shown = "".join(event.choices[0].text for event in events)
            choice = events[-1].choices[0]
        else:
            found = sdk.completions.create(**asked)
            choice = found.choices[0]
            shown = choice.text
            count = found.usage.completion_tokens
            assert state.replica.text.decode(tokens[:count]).endswith(stop) or stop in text
            assert count < 60
        assert shown == text[:at]
        assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    kept = sdk.completions.create(**asked, extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].text == text[: at + 2]


def test_a_stop_token_ends_it_and_has_no_text(server, sdk):
    state, _ = server
    tokens, _ = text_after(state, [5, 6], 30)
    at = next(i for i in range(5, 30) if tokens.index(tokens[i]) == i)
    found = sdk.completions.create(
        model="mock", prompt=[5, 6], max_tokens=30, extra_body={"stop_token_ids": [tokens[at]]}
    )
    assert found.choices[0].text == state.replica.text.decode(tokens[:at])
    assert found.choices[0].finish_reason == "stop"
    assert found.usage.completion_tokens == at + 1


def test_a_chat_is_what_its_template_makes_of_it(server, sdk):
    state, _ = server
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    messages = [{"role": "user", "content": [{"type": "text", "text": "the mat"}]}]
    written = "<s><|user|>the mat" + json.dumps(tools) + "<|assistant|>"
    prompt = state.replica.text.encode(written, special=False)
    asked = {"model": "mock", "messages": messages, "tools": tools, "max_tokens": 12}
    found = sdk.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    assert found.usage.prompt_tokens == len(prompt)
    assert found.choices[0].message.content == text_after(state, prompt, 12)[1]
    content = found.choices[0].logprobs.content
    assert len(content) == 12
    assert all(len(entry.top_logprobs) == 3 for entry in content)
    events = list(sdk.chat.completions.create(**asked, stream=True))
    assert events[0].choices[0].delta.role == "assistant"
    assert {event.object for event in events} == {"chat.completion.chunk"}
    shown = "".join(event.choices[0].delta.content or "" for event in events)
    assert shown == found.choices[0].message.content
    follow = [*messages, found.choices[0].message.model_dump(), {"role": "user", "content": "on"}]
    assert sdk.chat.completions.create(model="mock", messages=follow, max_tokens=1).choices


def test_models_and_tokens(client, sdk):
    assert [model.id for model in sdk.models.list()] == ["mock"]
    assert sdk.models.retrieve("mock").id == "mock"
    made = client.post("/tokenize", json={"prompt": "the — mat"}).json()
    assert made["count"] == len(made["tokens"])
    assert made["tokens"][0] == 0
    back = client.post("/detokenize", json={"tokens": made["tokens"][1:]}).json()
    assert back == {"prompt": "the — mat"}
    chat = {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": False}
    tokens = client.post("/tokenize", json=chat).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == "<s><|user|>hi"


def test_what_the_server_tells_of_itself(client):
    client.post("/v1/completions", json={"prompt": [3] * 40, "max_tokens": 9})
    text = client.get("/metrics").text
    said = {line.rpartition(" ")[0].partition("{")[0] for line in text.splitlines()}
    assert {
        *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
        *("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:num_preemptions_total"),
        *("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
        *("vllm:request_success_total", "vllm:time_to_first_token_seconds_bucket"),
        *("vllm:inter_token_latency_seconds_sum", "vllm:e2e_request_latency_seconds_count"),
        *("vllm:request_queue_time_seconds_sum", "vllm:cache_config_info"),
    } <= said
    events = client.get("/debug/trace", params={"steps": 5}).json()["traceEvents"]
    steps = [event for event in events if event["ph"] == "X"]
    assert len(steps) == 5
    ends = [(step["ts"], step["ts"] + step["dur"]) for step in steps]
    assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(ends))
    state = client.get("/debug/state").json()
    assert state["pages"]["free"] + state["pages"]["prefix_tree"] == state["pages"]["all"]
    assert state["programs"] == {"compiled": 0, "most": 0}
    assert client.get("/health").status_code == 200
    answer = client.get("/health", headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"


def test_the_state_is_told_while_a_step_takes_long(tmp_path):
    """As one does whose program is compiled."""
    within, on = Event(), Event()

    def wait(_):
        within.set()
        on.wait(20)

    replica = replica_of(folder_of(tmp_path), wait=wait)
    with (
        running(replica) as (state, url),
        httpx.Client(base_url=url) as client,
        ThreadPoolExecutor() as beside,
    ):
        body = {"prompt": "the", "max_tokens": 2}
        answer = beside.submit(client.post, "/v1/completions", json=body, timeout=30)
        assert within.wait(10)
        begun = time.monotonic()
        found = client.get("/debug/state", timeout=10).json()
        assert client.get("/health").status_code == 200
        assert time.monotonic() - begun < 2
        assert found["server"]["answers"] == 1
        assert found["requests"]["running"] == 1
        assert found["step_seconds"] > 0
        on.set()
        assert answer.result().status_code == 200
        nothing_is_held(state)
        assert client.get("/debug/state").json()["step_seconds"] == 0


def test_answers_are_counted_by_path_and_status(client):
    def counted():
        lines = client.get("/metrics").text.splitlines()
        found = (line.rpartition(" ") for line in lines if line.startswith("http_requests_total{"))
        return {labels: float(value) for labels, _, value in found}

    before = counted()
    client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
    client.post("/v1/completions", json={"prompt": "a", "max_tokens": "many"})
    client.get("/v1/models/another")
    client.get("/nothing/here")
    after = counted()
    added = {labels: count - before.get(labels, 0) for labels, count in after.items()}
    assert {labels: count for labels, count in added.items() if count} == {
        'http_requests_total{handler="/v1/completions",status="200"}': 1,
        'http_requests_total{handler="/v1/completions",status="400"}': 1,
        'http_requests_total{handler="/v1/models/{name}",status="404"}': 1,
        'http_requests_total{handler="none",status="404"}': 1,
        'http_requests_total{handler="/metrics",status="200"}': 1,
    }


def test_an_answer_has_the_id_of_its_request_and_a_refusal_its_reason_in_the_log(
    client, monkeypatch
):
    logged = []
    monkeypatch.setattr(gate.log, "info", lambda event, extra: logged.append(extra["fields"]))
    body = {"prompt": "a", "max_tokens": 1, "store": False, "metadata": {"of": "ours"}}
    said = client.post("/v1/completions", json=body, headers={"X-Request-Id": "mine-2"}).json()
    refused = client.post("/v1/completions", json={**body, "top_p": 2}).json()
    assert said["id"] == "cmpl-mine-2"
    end = time.monotonic() + 10
    while len(logged) < 2 and time.monotonic() < end:  # the line comes after the answer
        time.sleep(0.01)
    ok, bad = logged
    assert ok["request_id"] == "mine-2"
    assert "error" not in ok
    assert bad["error"] == refused["error"]["message"]
