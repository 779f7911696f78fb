"""Whom a key is shown, and what a server's answer may be: through the commands that ask one."""

import json
import time

import pytest
from tests.apps.commands import document, over, refused, run

from hostile_endpoint import GOOD, HOSTILE, MODELS, PLAIN, TOKEN, HostileEndpoint, event
from shardwise.boundary.remote import server_at
from shardwise.errors import BadRequest
from shardwise.models import load_model
from shardwise.plans import ServePlan, model_hash, save_plan

BENCH = ("bench", "serve", "--requests", "1", "--input", "8", "--output", "4")
COMMANDS = (BENCH, ("generate", "the", "--max-tokens", "4"), ("chat", "--max-tokens", "4"))
KEYS = ("SHARDWISE_API_KEY", "OPENAI_API_KEY")
ADDRESSES = ("SHARDWISE_BASE_URL", "OPENAI_BASE_URL")
PLAN = ServePlan(
    model="smollm2-360m",
    model_hash=model_hash(load_model("smollm2-360m")),
    slice="rtx4090:1",
    mesh={},
    box=(1,),
    batch=16,
    input_length=8,
    output_length=4,
    prefill_chunk=2048,
    engine="vllm",
)


@pytest.fixture(autouse=True)
def around(monkeypatch):
    for name in (*KEYS, *ADDRESSES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def honest():
    with HostileEndpoint(lambda: [GOOD]) as found:
        yield found


def keys_shown(server):
    """What stood behind each Authorization of the requests that came."""
    lines = [line for heard in server.heard for line in heard.split(b"\r\n")]
    return [line.partition(b" ")[2] for line in lines if line.lower().startswith(b"authorization")]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("name", KEYS)
def test_a_key_of_another_address_is_not_shown(capsys, monkeypatch, honest, command, name):
    monkeypatch.setenv(name, "s3cret")
    monkeypatch.setattr("shardwise.apps.cli.generate._turn", iter(["hello", None]).__next__)
    _, out, err = run(capsys, *command, "--endpoint", honest.url)
    assert len(honest.heard) >= 2, err
    assert keys_shown(honest) == []
    assert "s3cret" not in out + err


def test_a_key_of_another_address_is_not_shown_by_calibrate(monkeypatch, capsys, honest, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    plan = tmp_path / "plan.yaml"
    save_plan(PLAN, plan)
    words = ("--endpoint", honest.url, "--requests", "4", "--rate", "50")
    run(capsys, "calibrate", plan, *words)
    assert honest.heard
    assert keys_shown(honest) == []
    run(capsys, "calibrate", plan, *words, "--api-key", "k")
    assert set(keys_shown(honest)) == {b"Bearer k"}


@pytest.mark.parametrize("name", range(2), ids=KEYS)
def test_a_variable_is_shown_at_its_own_address(capsys, monkeypatch, honest, name):
    monkeypatch.setenv(KEYS[name], "s3cret")
    monkeypatch.setenv(ADDRESSES[name], honest.url + "/v1")
    document(capsys, *BENCH, "--endpoint", honest.url.replace("127.0.0.1", "localhost"))
    assert set(keys_shown(honest)) == {b"Bearer s3cret"}


def test_a_given_key_is_shown_and_kept_out_of_the_answer(capsys, monkeypatch, honest):
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    found = document(capsys, *BENCH, "--endpoint", honest.url, "--api-key", "s3cret")
    assert set(keys_shown(honest)) == {b"Bearer s3cret"}
    assert "s3cret" not in json.dumps(found)


def test_a_key_does_not_go_unencrypted_to_another_machine(capsys, monkeypatch):
    clear = ("--endpoint", "http://server.invalid:8000")
    said = refused(capsys, [*BENCH, *clear, "--api-key", "s3cret"])
    assert f"--api-key would go unencrypted to '{clear[1]}'; give an https://" in said
    assert "s3cret" not in said
    assert "cannot be asked" in refused(
        capsys, [*BENCH, *clear, "--api-key", "s3cret", "--key-in-clear"]
    )
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    assert "cannot be asked" in refused(capsys, [*BENCH, *clear])
    monkeypatch.setenv("OPENAI_BASE_URL", clear[1])
    assert "OPENAI_API_KEY would go unencrypted" in refused(capsys, [*BENCH, *clear])


def test_whose_key_it_is(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "o")
    monkeypatch.setenv("SHARDWISE_API_KEY", "s")
    for address, key in (
        ("https://api.openai.com/v1", "o"),
        ("https://api.openai.com:443", "o"),
        ("http://api.openai.com", ""),
        ("https://api.openai.com.evil.example", ""),
        ("https://api.openai.com:8443", ""),
        ("https://evil.example/api.openai.com", ""),
        ("localhost:8000", "s"),
        ("http://127.0.0.1:8000/v1/", "s"),
        ("http://127.0.0.1:8001", ""),
        ("https://127.0.0.1:8000", ""),
    ):
        assert server_at(address).key == key, address
    assert "'o'" not in repr(server_at("https://api.openai.com"))


def test_a_redirect_is_not_followed(capsys, honest):
    moved = f"HTTP/1.1 307 Moved\r\nLocation: {honest.url}/v1/completions\r\n\r\n".encode()
    with HostileEndpoint(lambda: [moved]) as server:
        said = refused(capsys, [*BENCH, "--endpoint", server.url, "--api-key", "s3cret"])
    assert (
        f"points elsewhere (307), to '{honest.url}/v1/completions', and redirects are not" in said
    )
    assert honest.heard == []


def test_a_key_that_is_told_back_is_not_printed(capsys):
    told = b"HTTP/1.1 401 No\r\n\r\nwrong key s3cret"
    with HostileEndpoint(lambda: [told]) as server:
        said = refused(capsys, [*BENCH, "--endpoint", server.url, "--api-key", "s3cret"])
        assert "refused a request with 401: wrong key [key]; the key is not its own" in said
        assert "give its key with --api-key" in refused(capsys, [*BENCH, "--endpoint", server.url])


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("ftp://x", "must begin with"),
        ("http://me:s3cret@x", "give a key with --api-key"),
        ("http://x:99999", "out of range"),
        ("http://x y", "visible ASCII"),
        ("http://x\r\nA: b", "visible ASCII"),
        ("http://x\u200b", "visible ASCII"),
        ("http://", "has no host"),
        ("http://x?key=1", "'?' or '#'"),
        ("http://[::1", "Invalid IPv6"),
    ],
)
def test_what_is_no_address_is_refused(capsys, address, reason):
    said = refused(capsys, [*BENCH, "--endpoint", address])
    assert "is not a server address" in said
    assert reason in said
    assert "s3cret" not in said


@pytest.mark.parametrize("key", ["", "a b", "a\nX: y", "ключ", "k" * 5000])
def test_what_is_no_key_is_refused_unsaid(capsys, key):
    said = refused(capsys, [*BENCH, "--api-key", key])
    assert "--api-key is" in said
    assert not key or key not in said


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_is_a_counted_failure(capsys, name):
    """One request of two is answered well, so that the load has figures; the time of a request is
    that of the whole, however it drips."""
    answers = iter([lambda: [GOOD], HOSTILE[name]])
    with HostileEndpoint(lambda: next(answers)()) as server:
        began = time.monotonic()
        words = ("--endpoint", server.url, "--timeout", "0.5", "--concurrency", "1")
        found = document(capsys, *over(BENCH, "--requests", "2", *words))
    assert time.monotonic() - began < 10
    assert (found["result"]["completed"], found["result"]["failed"]) == (1, 1)
    (said,) = found["result"]["errors"]
    assert server.url in said
    assert len(said) < 800
    assert said.isprintable()


@pytest.mark.parametrize("name", [name for name in HOSTILE if "drip" not in name])
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_what_a_hostile_server_says_to_a_person(capsys, monkeypatch, command, name):
    if "silence" in name:
        monkeypatch.setattr("shardwise.apps.cli.generate.SECONDS", 0.2)
    monkeypatch.setattr("shardwise.apps.cli.generate._turn", iter(["hello", None]).__next__)
    words = ["the"] if command == "generate" else []
    with HostileEndpoint(HOSTILE[name]) as server:
        code, _, err = run(capsys, command, *words, "--endpoint", server.url, "--max-tokens", "4")
    assert code == 2 or name in ("no tokens", "too many tokens")
    assert (server.url in err) == (code == 2)


@pytest.mark.parametrize(
    "models",
    [[PLAIN, b'{"data": "x"}'], [PLAIN, b"[]"], [PLAIN, b'{"data": [{"id": 7}]}'], [PLAIN, b"no"]],
)
def test_a_server_without_a_model_is_told(capsys, models):
    with HostileEndpoint(lambda: [GOOD], lambda: models) as server:
        assert server.url in refused(capsys, [*BENCH, "--endpoint", server.url])


def test_an_endless_list_of_models_ends(capsys):
    with HostileEndpoint(lambda: [GOOD], lambda: [MODELS, *[b" " * 10_000] * 1000]) as server:
        said = refused(capsys, [*BENCH, "--endpoint", server.url])
    assert "has more than 1,048,576 bytes" in said


def test_tokens_are_counted_within_what_was_asked(capsys):
    many = [PLAIN, TOKEN, event({"usage": {"completion_tokens": 5}}), b"data: [DONE]\n\n"]
    with HostileEndpoint(lambda: many) as server:
        said = refused(capsys, [*BENCH, "--endpoint", server.url])
    assert "completion_tokens of" in said
    assert "is 5; it must be a whole number of at least 1 and at most 4" in said


def test_a_python_caller_is_refused_alike():
    with pytest.raises(BadRequest, match="is not a server address"):
        server_at("http://")


NUMBERS = ("requests", "rate", "cv", "input", "output", "spread", "speed", "concurrency")
NUMBERS += ("vocabulary", "timeout", "seed")


@pytest.mark.parametrize("value", ["-5", "nan", "inf", "1e300", "x", ""])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_makes_no_load_is_named(capsys, name, value):
    said = refused(capsys, over(BENCH, f"--{name}", value))
    assert f"--{name} is" in said
    assert "must be" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--requests", "1000", "--input", "1000000"), "have 1,000,000,000 tokens in all"),
        (("--requests", "1000", "--rate", "1e-6"), "the last request comes after"),
        (("--concurrency", "2000"), "--concurrency is 2000; it must be"),
    ],
)
def test_a_load_that_would_not_end_is_refused(capsys, words, said):
    assert said in refused(capsys, over(BENCH, *words))


def test_a_figure_of_no_value_is_none(capsys, honest):
    """One token has no time to the next."""
    one = [PLAIN, TOKEN, b"data: [DONE]\n\n"]
    with HostileEndpoint(lambda: one) as server:
        words = ("--endpoint", server.url, "--output", "1")
        found = document(capsys, *over(BENCH, *words))["result"]
        assert found["mean_itl_ms"] is None
        assert found["p99_tpot_ms"] is None
        assert found["mean_ttft_ms"] > 0
        _, out, _ = run(capsys, *over(BENCH, *words))
    assert [line.split()[-1] for line in out.splitlines() if "between tokens" in line] == ["-"]
