"""`shardwise calibrate`: a load on a server that speaks the API, and the files that come of it."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.apps.commands import document, run

from shardwise.boundary.remote import server_at
from shardwise.commands.run.calibration.endpoint import load, measure
from shardwise.errors import BadRequest
from shardwise.hardware import load_chip
from shardwise.models import load_model
from shardwise.plans import ServePlan, ServeScheduling, model_hash, save_plan
from shardwise.roofline.engines import load_engine

STEP, PER_PROMPT_TOKEN = 0.002, 1e-6


class Api(BaseHTTPRequestHandler):
    """Streams as many tokens as asked for, one per STEP."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        if asked["model"] != "tiny":
            self.send_error(404, "no such model")
            return
        self.send_response(200)
        self.end_headers()
        time.sleep(PER_PROMPT_TOKEN * len(asked["prompt"]))
        for _ in range(asked["max_tokens"]):
            time.sleep(STEP)
            self._say({"choices": [{"text": "a"}]})
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": asked["max_tokens"]}
        self._say({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _say(self, event):
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    api = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    api.asked = []
    thread = threading.Thread(target=api.serve_forever, daemon=True)
    thread.start()
    yield api
    api.shutdown()
    api.server_close()
    thread.join()


def url(server):
    return f"http://127.0.0.1:{server.server_address[1]}"


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.yaml"
    plan = ServePlan(
        model="smollm2-360m",
        model_hash=model_hash(load_model("smollm2-360m")),
        slice="rtx4090:1",
        mesh={},
        box=(1,),
        batch=16,
        input_length=100,
        output_length=20,
        prefill_chunk=2048,
        engine="vllm",
        scheduling=ServeScheduling(page_size=16),
    )
    save_plan(plan, path)
    return path


def test_a_load_has_the_lengths_and_the_rate_asked_for():
    asks = load(400, 8.0, 1000, 100)
    assert sum(a.alone for a in asks) == 3
    assert 40 < asks[-1].at < 60
    assert all(500 <= a.prompt <= 1500 and 50 <= a.output <= 150 for a in asks)
    with pytest.raises(BadRequest, match="--requests is 2"):
        load(2, 1.0, 10, 10)


def test_a_server_is_measured(server):
    asks = load(8, 100.0, 50, 5)
    records = measure(server_at(url(server)), "tiny", 1000, asks)
    assert [(r.id, r.prompt, r.output) for r in records] == [
        (a.id, a.prompt, a.output) for a in asks
    ]
    for r in records:
        assert 0 < r.ttft <= r.e2e
        assert r.e2e >= r.output * STEP
    # Prompts are ids of the vocabulary, none like another, and answers do not stop early.
    prompts = [tuple(asked["prompt"]) for asked in server.asked]
    assert len(set(prompts)) == 8
    assert all(256 <= i < 1000 for prompt in prompts for i in prompt)
    assert all(asked["ignore_eos"] and asked["stream"] for asked in server.asked)


def test_a_server_that_is_not_there_or_refuses_is_named(server):
    asks = load(5, 100.0, 5, 2)
    with pytest.raises(BadRequest, match="refused a request with 404"):
        measure(server_at(url(server)), "another", 1000, asks)
    with pytest.raises(BadRequest, match="cannot be asked"):
        measure(server_at("http://127.0.0.1:9"), "tiny", 1000, asks)


def test_files_come_of_a_calibration(capsys, server, plan, tmp_path):
    out = tmp_path / "mine.toml"
    args = ("--endpoint", url(server), "--served-model", "tiny", "--requests", "12")
    doc = document(capsys, "calibrate", plan, *args, "--rate", "50", "-o", out)
    result = doc["result"]
    assert result["records"] == 12
    assert result["files"] == [str(out), str(out.with_suffix(".engine.toml"))]
    values = result["values"]
    chip = load_chip("rtx4090", hw_files=[out])
    assert chip.efficiency.hbm == pytest.approx(values["hbm"]["after"], rel=1e-3)
    assert "calibrated on 12 requests" in chip.sources["efficiency.hbm"]
    engine = load_engine(str(out.with_suffix(".engine.toml")))
    after = values["kernel_seconds"]["after"]
    assert engine.kernel_seconds == pytest.approx(after, rel=1e-3)
    assert engine.prefill_wait == load_engine("vllm").prefill_wait
    assert result["errors"]["after"] != result["errors"]["before"]


def test_records_do_instead_of_a_server(capsys, plan, tmp_path):
    path = tmp_path / "requests.jsonl"
    rows = [
        {
            "request_id": f"bench-{i}",
            "input_toks": 100,
            "output_toks": 20,
            "queued_ts": i * 0.1,
            "first_token_ts": i * 0.1 + 0.01,
            "last_token_ts": i * 0.1 + 0.06,
        }
        for i in range(6)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    code, out, _ = run(capsys, "calibrate", plan, "--records", path)
    assert code == 0
    assert "calibrated on 6 requests" in out


def test_requests_that_cannot_be_answered(capsys, plan):
    for args, said in (
        ((), "give either --endpoint URL or --records FILE"),
        (("--records", "missing.jsonl"), "cannot read the records"),
        (("--endpoint", "http://x", "--rate", "0"), "--rate is 0.0; it must be a number above 0"),
    ):
        code, _, err = run(capsys, "calibrate", plan, *args)
        assert code == 2
        assert said in err


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--endpoint", "http://localhost:1"], "--endpoint is of servers; name their PLAN"),
        (["--rate", "2"], "--rate is of servers; name their PLAN"),
        (["-q", "--brief", "--detail"], "name the hardware file to write: -o FILE.toml"),
        ([], "name the hardware file to write: -o FILE.toml"),
        (["plan.yaml", "--cpu-devices", "2"], "--cpu-devices is of this machine's devices"),
    ],
)
def test_options_are_those_of_the_machine_or_of_a_server(capsys, asked, said):
    code, _, err = run(capsys, "calibrate", *asked)
    assert code == 2
    assert said in err
