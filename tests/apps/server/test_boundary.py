"""What a connection may cost before its request is accepted, and who may ask, from raw sockets."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.apps.commands import run as command
from tests.apps.server.made import folder_of, nothing_is_held, replica_of
from tests.apps.web.raw import connect, error_of, get, post, read, status_of, tell
from tests.tiers import spread

from shardwise.apps.server.reply import _parts
from shardwise.apps.server.run import running
from shardwise.apps.server.state import ServerLimits
from shardwise.apps.web.connection import ConnectionLimits
from shardwise.apps.web.hosts import host_rule

SOON = ConnectionLimits(first=0.5, head=0.5, idle=1, stall=0.5)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = folder_of(tmp_path_factory.mktemp("checkpoint"))
    replica = replica_of(folder, wait=lambda _: time.sleep(0.001))
    with running(replica, ServerLimits(upload=1.0, connection=SOON)) as (state, url):
        yield state, int(url.rpartition(":")[2])
        nothing_is_held(state)


@pytest.fixture
def port(server):
    return server[1]


@contextmanager
def watched(port, most):
    """Asks /health all the while; no answer may take over `most` seconds."""
    slowest, over = [0.0], threading.Event()

    def ask():
        while not over.is_set():
            begun = time.monotonic()
            assert status_of(tell(port, get("/health"), timeout=60)) == 200
            slowest[0] = max(slowest[0], time.monotonic() - begun)
            time.sleep(0.01)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert slowest[0] < most, f"/health took {slowest[0]:.1f} s"


# ---- who may ask


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.8.9.10:1", "[::1]", "[::1]:5"]
)
def test_a_server_of_this_machine_answers_to_its_names(port, host):
    assert status_of(tell(port, get("/v1/models", host=host))) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "10.0.0.1", "localhost.evil.example", "127.0.0.1.evil.example", "", "["],
)
def test_another_host_is_refused(port, host):
    """A page that rebinds its name to this address would read the answers."""
    for path in ("/v1/models", "/health"):
        error = error_of(tell(port, get(path, host=host)))
        assert error["code"] == 421
        assert "--allowed-host" in error["message"]


def test_a_request_has_one_host(port):
    assert error_of(tell(port, get("/health", "Host: localhost")))["code"] == 400
    assert error_of(tell(port, b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"))["code"] == 400


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("Origin: http://127.0.0.1", 200),
        ("Origin: http://evil.example", 403),
        ("Origin: null", 403),
        ("Origin: http://127.0.0.1:81", 403),
        ("Sec-Fetch-Site: cross-site", 403),
        ("Sec-Fetch-Site: same-site", 403),
        ("Sec-Fetch-Site: same-origin", 200),
        ("Sec-Fetch-Site: none", 200),
    ],
)
def test_pages_of_other_sites_may_not_ask(port, line, status):
    body = {"prompt": "the", "max_tokens": 1}
    for request in (get("/v1/models", line), post("/v1/completions", body, line)):
        answer = tell(port, request)
        assert status_of(answer) == status
        assert status == 200 or error_of(answer)["code"] == 403


@pytest.mark.parametrize(
    ("bound", "names", "keyed", "right", "wrong"),
    [
        ("127.0.0.1", (), True, ["localhost"], ["a.example", "10.0.0.2"]),
        ("127.0.0.1", ("a.example",), False, ["A.example:80", "127.0.0.1"], ["b.example"]),
        ("0.0.0.0", (), False, ["10.0.0.2:8000", "[fe80::1]", "localhost"], ["a.example"]),
        ("0.0.0.0", ("a.example",), True, ["a.example.", "10.0.0.2"], ["b.example"]),
        ("0.0.0.0", (), True, ["a.example", "10.0.0.2"], []),
        ("box.lan", (), False, ["box.lan:8000"], ["a.example"]),
        ("0.0.0.0", (), False, [socket.gethostname()], ["a.example"]),
        ("::", ("*",), False, ["a.example"], []),
    ],
)
def test_what_a_server_answers_to(bound, names, keyed, right, wrong):
    rule = host_rule(bound, names, keyed=keyed)
    assert [host for host in (*right, *wrong) if rule.admits(host)] == right


@pytest.mark.parametrize("name", ["http://a.example", "a.example:80", "a b", ""])
def test_a_host_that_is_none_is_refused_at_the_start(name, capsys, tmp_path):
    code, _, err = command(capsys, "serve", tmp_path, "--allowed-host", name)
    assert code == 2
    assert err.startswith("error: --allowed-host ")


# ---- headers


def flood(port, head, part, most):
    """Send a beginning and then the same over and over, until the other side has enough: how many
    bytes it took, and its answer."""
    with connect(port) as connection:
        sent = 0
        try:
            connection.sendall(head)
            while sent < most:
                connection.sendall(part)
                sent += len(part)
        except OSError:
            pass
        return sent, read(connection)


CHUNKED = (
    b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
FLOODS = {
    "one header": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ", b"a" * 2**16),
    "many headers": (b"GET /health HTTP/1.1\r\n", b"X-A: b\r\n" * 2**13),
    "a name": (b"GET /health HTTP/1.1\r\n", b"a" * 2**16),
    "a path": (b"GET /", b"a" * 2**16),
    "empty lines": (b"", b"\r\n" * 2**15),
    "trailers": (CHUNKED + b"2\r\n{}\r\n0\r\nX: ", b"a" * 2**16),
    "a chunk's extension": (CHUNKED + b"2;x=", b"a" * 2**16),
}


@pytest.mark.parametrize("kind", spread(FLOODS, quick=[0, 5], slow=[1, 6]))
def test_a_header_has_an_end(port, kind):
    with watched(port, 5.0):
        sent, answer = flood(port, *FLOODS[kind], 64 * 2**20)
    assert sent < 32 * 2**20
    if answer:  # a client that sends on may not read why
        assert error_of(answer)["code"] in (400, 431)


def test_a_long_header_is_told_so(port):
    for line in ("X: " + "a" * 70_000, "\r\n".join(f"X-{i}: 1" for i in range(200))):
        error = error_of(tell(port, get("/health", line)))
        assert error["code"] == 431
        assert "the header has over" in error["message"]
    assert status_of(tell(port, get("/health", "X: " + "a" * 60_000))) == 200


def test_requests_in_a_row_are_answered_in_turn_and_not_without_end(port):
    one = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert tell(port, one * 9 + get("/health")).count(b"HTTP/1.1 200") == 10
    body = {"prompt": [5] * 9, "max_tokens": 100}
    answer = tell(port, post("/v1/completions", body).replace(b"close", b"keep-alive") + one * 5000)
    assert answer.count(b"HTTP/1.1") < 40


# ---- bodies


WRONG = {
    "lists of words": b'{"prompt": [' + b",".join([b'["a"]'] * 500_000) + b"]}",
    "350 kB of them": b'{"prompt": [' + b",".join([b'["a"]'] * 58_000) + b"]}",
    "names": b"{" + b",".join(b'"k%d": 1' % i for i in range(300_000)) + b"}",
    "names of a few": b"{" + b",".join(b'"k%d": 1' % i for i in range(5000)) + b"}",
    "names of a message": b'{"messages": [{'
    + b",".join(b'"k%d": 1' % i for i in range(60_000))
    + b"}]}",
    "biases": b'{"prompt": "a", "logit_bias": {'
    + b",".join(b'"k%d": 1' % i for i in range(60_000))
    + b"}}",
    "numbers": b'{"prompt": [' + b"1," * 3_900_000 + b"1]}",
    "texts": b'{"prompt": [' + b'"",' * 2_000_000 + b'""]}',
    "deep": b'{"prompt": ' + b"[" * 4_000_000,
    "unprintable": b'{"n": "' + b"\xc2\x80" * 4_000_000 + b'"}',
    "a list for a number": b'{"prompt": "a", "n": [' + b"1," * 400_000 + b"1]}",
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_body_costs_little_and_stalls_nobody(server, kind):
    state, port = server
    path = "/v1/chat/completions" if kind == "names of a message" else "/v1/completions"
    state.pace.__init__()
    begun = time.process_time()
    with watched(port, 5.0):
        error = error_of(tell(port, post(path, WRONG[kind]), timeout=60))
    assert error["code"] == 400
    assert len(error["message"]) < 1000
    assert time.process_time() - begun < 4
    assert state.held == 0


def test_a_body_that_is_too_large_is_refused_before_it_is_read(port):
    head = post("/tokenize", b"", "Content-Length: 99999999999999999999")
    head = head.replace(b"Content-Length: 0\r\n", b"")
    assert error_of(tell(port, head))["code"] in (400, 413)
    head = head.replace(b"99999999999999999999", b"9999999999")
    assert error_of(tell(port, head))["code"] == 413


def test_a_body_in_tiny_pieces_has_an_end(port):
    head = post("/tokenize", b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    sent, answer = flood(port, head, b"1\r\n \r\n" * 2**13, 64 * 2**20)
    assert sent < 32 * 2**20
    assert not answer or error_of(answer)["code"] in (408, 413)


@pytest.mark.parametrize("coding", ["gzip", "br", "gzip, identity"])
def test_a_coded_body_is_refused(port, coding):
    error = error_of(tell(port, post("/tokenize", b"\x1f\x8b", f"Content-Encoding: {coding}")))
    assert error["code"] == 415
    assert "Content-Encoding" in error["message"]


def test_large_bodies_share_their_room(tmp_path):
    limits = ServerLimits(bodies=2**20, upload=5.0)
    with running(replica_of(folder_of(tmp_path)), limits) as (state, url):
        port = int(url.rpartition(":")[2])
        with connect(port) as slow:
            slow.sendall(post("/tokenize", b" " * 2**20)[:-9])
            until(lambda: state.held > 900_000)
            error = error_of(tell(port, post("/tokenize", b" " * 2**18)))
            assert error["code"] == 429
            assert status_of(tell(port, post("/tokenize", {"prompt": "a"}))) == 200


def until(true, seconds=10.0):
    """Wait for something to be so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


# ---- prompts that come back


def test_a_prompt_is_reported_within_limits(port):
    asked = {"prompt": [[5] * 1000] * 100, "max_tokens": 0, "echo": True, "logprobs": 20}
    error = error_of(tell(port, post("/v1/completions", asked)))
    assert (error["code"], error["param"]) == (400, "echo")
    assert "2,100,000 tokens" in error["message"]


def test_a_long_report_stalls_nobody(server):
    state, port = server
    prompt = [5 + i % 200 for i in range(1000)]
    asked = {"prompt": [prompt] * 24, "max_tokens": 0, "echo": True, "logprobs": 20}
    with watched(port, 5.0):
        answer = tell(port, post("/v1/completions", asked), timeout=60)
    choices = json.loads(answer.partition(b"\r\n\r\n")[2])["choices"]
    assert [len(choice["logprobs"]["tokens"]) for choice in choices] == [1000] * 24
    nothing_is_held(state)
    assert state.reported == 0


def test_a_document_in_parts_is_the_document():
    document = {
        "a": [{"b": 1, "c": [None, 2.5, "\u20ac"]}, {}, []],
        "many": list(range(1500)),
        "rows": [{"x": [{"y": i}]} for i in range(3)],
        "none": [],
    }
    assert json.loads(b"".join(_parts(document))) == document


# ---- time


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", 0),
        (b"GET /hea", 408),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n", 408),
        (post("/tokenize", b"{}")[:-1], 408),
    ],
    ids=["nothing", "a path", "a header", "a body"],
)
def test_who_stops_halfway_is_left(port, sent, status):
    begun = time.monotonic()
    answer = tell(port, sent, timeout=8)
    assert time.monotonic() - begun < 6
    assert status_of(answer) == status
    assert not answer or error_of(answer)


def test_a_header_in_drops_is_left(port):
    with connect(port) as connection:
        end = time.monotonic() + 6
        connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
        with contextlib.suppress(OSError):
            while time.monotonic() < end:
                connection.sendall(b"a")
                time.sleep(0.02)
        assert time.monotonic() < end


def test_a_connection_that_rests_is_closed(port):
    with connect(port) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status_of(read(connection)) == 200


def test_who_reads_nothing_is_left(server):
    """An answer of some megabytes that nobody takes."""
    state, port = server
    prompt = "the quick brown fox " * 200
    body = {"prompt": [prompt] * 100, "max_tokens": 0, "echo": True, "n": 4}
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        connection.sendall(post("/v1/completions", body | {"stream": True}))
        until(lambda: state.waiting)
        until(lambda: not state.waiting and not state.active)


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_ends_what_was_asked_before_it_runs(server, stream):
    state, port = server
    body = {"prompt": [5] * 100, "max_tokens": 900, "stream": stream}
    request = post("/v1/completions", body).replace(b"close", b"keep-alive")
    with connect(port) as connection:
        connection.sendall(request * 2)  # the second one waits for the first
        until(lambda: state.waiting)
    until(lambda: not state.waiting and not state.active, 1.0)


# ---- half a connection, and what is not HTTP


def test_who_closes_one_side_is_told(server):
    state, port = server
    assert status_of(tell(port, get("/v1/models"), half=True)) == 200
    long = {"prompt": [5] * 100, "max_tokens": 900}
    error = error_of(tell(port, post("/v1/completions", long), half=True))
    assert error["code"] == 400
    assert "closed its side" in error["message"]
    assert error_of(tell(port, post("/tokenize", b"{}")[:-1], half=True))["code"] == 400
    assert error_of(tell(port, b"GET /health HT", half=True))["code"] == 400
    assert tell(port, b"", half=True) == b""
    answer = tell(port, post("/v1/completions", long | {"stream": True}), half=True)
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert b"closed its side" in answer
    nothing_is_held(state)


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nBad Header: 1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        CHUNKED + b"zz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        bytes(range(256)),
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_what_is_no_http_gets_an_error_as_the_api_has_it(port, sent):
    assert error_of(tell(port, sent))["code"] in (400, 431)


def test_other_protocols_are_not_spoken(port):
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    asked = post("/tokenize", {"prompt": "the"}, *upgrade)
    assert "Upgrade" in error_of(tell(port, asked))["message"]
    assert status_of(tell(port, get("/v1/models", *upgrade))) == 200


# ---- how many


FEW = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
from pathlib import Path
from tests.apps.commands import run as command
from tests.apps.server.made import replica_of
from tests.tiers import spread
from shardwise.apps.server.run import bound, run_server
from shardwise.apps.server.state import ServerLimits

sock = bound("127.0.0.1", 0)
ready = lambda url: print(url, flush=True)
run_server(replica_of(Path(sys.argv[1])), sock, limits=ServerLimits(drain=1), ready=ready)
"""


@pytest.mark.slow
def test_a_server_of_three_hundred_files_has_room_beside_silent_clients(tmp_path):
    root = Path(__file__).parents[3]
    paths = [str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")]
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("w+"))
        child = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", FEW, str(folder_of(tmp_path / "model"))],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        )
        stack.callback(child.kill)
        assert child.stdout is not None
        port = int(child.stdout.readline().rpartition(":")[2])
        for i in range(500):
            try:
                connection = stack.enter_context(connect(port))
                if i % 2:
                    connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
            except OSError:
                continue
            if i % 50 == 0:
                assert status_of(tell(port, get("/health"))) == 200
        assert status_of(tell(port, post("/tokenize", {"prompt": "the"}))) == 200
        child.terminate()
        child.wait(20)
        log.seek(0)
        lines = [json.loads(line) for line in log if line.strip()]
        assert not [line for line in lines if "traceback" in line]
