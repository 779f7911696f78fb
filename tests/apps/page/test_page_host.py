"""Who may ask the page, how much at once, and what it says where it cannot listen."""

import sys
from pathlib import Path
from subprocess import PIPE, run
from threading import Event
from time import monotonic, sleep

import pytest
from tests.apps.commands import run as command
from tests.apps.web.raw import connect, get, status_of, tell

from shardwise.apps.page import call
from shardwise.apps.page.app import ANSWERS, BUNDLE
from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.run import running
from shardwise.errors import BadRequest


def test_the_page_is_of_this_host_alone(page):
    found = page.get("/")
    assert found.headers["Content-Security-Policy"].startswith("default-src 'self'")
    assert page.get("/", headers={"Host": "elsewhere.example"}).status_code == 421
    assert page.get("/app.py").status_code == 404
    assert page.get("/..%2fapp.py").status_code == 404
    text = (BUNDLE / "index.html").read_text() + (BUNDLE / "app.css").read_text()
    assert "//" not in text.replace("</", ""), "the page loads from a host"


WITHOUT = """
import sys
sys.modules |= dict.fromkeys(("starlette", "uvicorn"))
from shardwise.apps.cli import main
main(["ui"])
"""


def test_without_the_extra_it_names_the_install_command():
    done = run([sys.executable, "-c", WITHOUT], stderr=PIPE, text=True, cwd=Path(__file__).parent)
    assert done.returncode == 5
    assert done.stderr == "error: the page needs uvicorn: pip install '.[serve]'\n"


def test_a_port_that_is_taken(capsys):
    from shardwise.apps.page.run import listener

    with listener("127.0.0.1", 0) as made:
        made.listen()
        code, _, err = command(capsys, "ui", "--port", made.getsockname()[1])
    assert code == 2
    assert "choose another --port" in err


@pytest.fixture(scope="module")
def served():
    with running() as url:
        yield int(url.rstrip("/").rpartition(":")[2])


@pytest.mark.parametrize(
    "line",
    [
        "Origin: http://evil.example",
        "Origin: null",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
    ],
)
def test_pages_of_other_sites_make_nothing_here(served, line):
    for path in ("/api/view/roofline", "/api/answer/training", "/api/views"):
        answer = tell(served, get(path, line))
        assert status_of(answer) == 403
        assert b"another site" in answer or b"may not ask" in answer
    assert status_of(tell(served, get("/", line))) == 200, "a link leads to the page"
    assert status_of(tell(served, get("/api/views", "Sec-Fetch-Site: same-origin"))) == 200


def test_what_nobody_waits_for_is_not_begun(served, monkeypatch):
    begun, go = [], Event()

    def slow(call):
        begun.append(call)
        go.wait(20)
        raise BadRequest("that is enough")

    monkeypatch.setattr(VerbCall, "answer", slow)
    open_ones = [connect(served) for _ in range(45)]
    for connection in open_ones:
        connection.sendall(get("/api/view/roofline"))
    until = monotonic() + 10
    while len(begun) < ANSWERS and monotonic() < until:
        sleep(0.01)
    assert status_of(tell(served, get("/"))) == 200
    for connection in open_ones:
        connection.close()
    assert status_of(tell(served, get("/api/views"))) == 200
    sleep(0.3)
    go.set()
    assert status_of(tell(served, get("/api/view/roofline"))) == 400
    assert len(begun) <= 2 * ANSWERS + 1


@pytest.mark.parametrize("path", ["training?model=llama-3-70b&chips=256", "start?days=29"])
def test_a_search_that_nobody_waits_for_ends(served, monkeypatch, path):
    begun, ended, heard = Event(), Event(), call._heard

    def told(done, total):
        begun.set()
        sleep(0.02)
        try:
            heard(done, total)
        except call.LeftError:
            ended.set()
            raise

    monkeypatch.setattr(call, "_heard", told)
    connection = connect(served)
    connection.sendall(get(f"/api/view/{path}&fine=yes"))
    assert begun.wait(20)
    connection.close()
    assert ended.wait(20)
    assert status_of(tell(served, get("/api/view/roofline"))) == 200


def test_a_header_of_the_page_has_an_end(served):
    assert status_of(tell(served, get("/", "X: " + "a" * 70_000))) == 431
