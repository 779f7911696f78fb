"""`generate`, `chat`, `bench serve` against a server over the mock engine; `serve` refused."""

import io
import json

import pytest
from tests.apps.commands import document, refused, run
from tests.apps.server.made import folder_of, replica_of, text_after

import shardwise as sw
from shardwise.apps.cli.generate import _show
from shardwise.apps.server.run import bound, running
from shardwise.errors import BadRequest


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(replica_of(folder_of(tmp_path_factory.mktemp("checkpoint")))) as found:
        yield found


def test_a_text_goes_on(server, capsys):
    state, url = server
    code, out, _ = run(capsys, "generate", "the dog", "--endpoint", url, "--max-tokens", 9)
    assert code == 0
    assert out == text_after(state, state.replica.text.encode("the dog"), 9)[1] + "\n"


def test_a_chat_goes_on_turn_by_turn(server, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("the fox\nand\n"))
    words = ("--endpoint", server[1], "--max-tokens", 3, "--system", "short")
    code, out, _ = run(capsys, "chat", *words)
    state = server[0]
    first = "<s><|system|>short<|user|>the fox<|assistant|>"
    said = text_after(state, state.replica.text.encode(first, special=False), 3)[1]
    second = first.removesuffix("<|assistant|>") + f"<|assistant|>{said}<|user|>and<|assistant|>"
    again = text_after(state, state.replica.text.encode(second, special=False), 3)[1]
    assert (code, out) == (0, f"{said}\n{again}\n")


LOAD = ("bench", "serve", "--vocabulary", 300)


def test_a_load_has_vllms_figures(server, capsys):
    words = ("--requests", 30, "--input", 20, "--output", 5, "--concurrency", 8, "--spread", 0.5)
    found = document(capsys, *LOAD, "--endpoint", server[1], *words)["result"]
    assert (found["completed"], found["failed"], found["model_id"]) == (30, 0, "mock")
    assert found["total_output_tokens"] / found["duration"] == found["output_throughput"]
    assert found["p50_ttft_ms"] <= found["p99_ttft_ms"] <= found["p99_e2el_ms"]
    assert {"mean_itl_ms", "median_tpot_ms", "std_e2el_ms", "request_throughput"} <= set(found)
    assert 30 * 10 <= found["total_input_tokens"] <= 30 * 30


def test_a_trace_shares_the_beginnings_that_it_says(server, tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 200 * i, "input_length": 600, "output_length": 3} for i in range(6)]
    path.write_text(
        "\n".join(json.dumps({**r, "hash_ids": [7, 8 + i % 2]}) for i, r in enumerate(rows))
    )
    before = server[0].metrics.counters["prefix_cache_hits"]._value.get()
    found = sw.bench_serve(endpoint=server[1], trace=str(path), vocabulary=300, speed=2)
    assert found.result["total_input_tokens"] == 3600
    assert 0.5 < found.result["duration"] < 20
    assert server[0].metrics.counters["prefix_cache_hits"]._value.get() - before >= 5 * 512
    assert "6 requests in" in str(found)
    assert found.table()[0]["latency"] == "time to first token"


def test_what_a_server_refuses_is_told(server, capsys):
    said = refused(capsys, [*LOAD, "--endpoint", server[1], "--input", 2000, "--requests", 2])
    assert "no request was answered" in said
    assert "shorten it" in said
    said = refused(capsys, ["generate", "a", "--endpoint", server[1], "--max-tokens", 5000])
    assert "ask for at most" in said
    said = refused(capsys, ["generate", "a", "--endpoint", "127.0.0.1:9"])
    assert "cannot be asked" in said
    assert "Connection refused" in said
    said = refused(capsys, ["chat", "--endpoint", "a", "--model", "b"])
    assert "give one" in said


def test_a_server_that_cannot_be_opened_is_refused(capsys, tmp_path, server):
    assert "has no tokenizer.json" in refused(capsys, ["serve", tmp_path, "--port", 0])
    port = server[1].rpartition(":")[2]
    said = refused(capsys, ["serve", tmp_path, "--port", port])
    assert f"cannot listen on --host 127.0.0.1 --port {port}" in said
    assert "--api-key is empty" in refused(capsys, ["serve", tmp_path, "--api-key", ""])
    assert "unknown value of --warm" in str(_refusal(warm="hot"))


def _refusal(**words):
    from shardwise.commands.run.serving import ServeModelRequest

    with pytest.raises(BadRequest) as error:
        ServeModelRequest(path="x", **words)
    return error.value


def test_a_listening_socket_is_freed():
    bound("127.0.0.1", 0).close()
    with pytest.raises(BadRequest, match="cannot listen"):
        bound("256.0.0.1", 80)


def test_a_folder_that_is_none_is_named(capsys, tmp_path):
    said = refused(capsys, ["generate", "the", "--model", str(tmp_path / "nowhere")])
    assert "nowhere' is not a folder; give the folder of a checkpoint" in said


def test_programs_that_a_load_compiled_are_told(server, capsys):
    words = ("--endpoint", server[1], "--requests", 3, "--input", 20, "--output", 3)
    assert document(capsys, *LOAD, *words)["warnings"] == []
    (replica,) = server[0].replica.engine.replicas
    executor = replica.executor
    before = executor.run
    executor.run = lambda batches: setattr(executor, "programs", 2) or before(batches)
    found = document(capsys, *LOAD, *words)
    executor.run = before
    assert found["result"]["compiled_programs"] == 2
    assert "the server compiled 2 programs under this load" in found["warnings"][0]


def test_an_answer_does_not_steer_a_terminal(capsys, monkeypatch):
    _show("a\x08b\n")
    assert capsys.readouterr().out == "a\x08b\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _show("a\x08b\n")
    assert capsys.readouterr().out == "a\\x08b\n"
