"""Files that the page is given: kept by a digest, within limits, from its own page alone."""

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.apps.page.states import asked, trace_file
from tests.apps.web.raw import status_of, tell

from shardwise.apps.page import given
from shardwise.apps.page.run import running
from shardwise.commands.program.report import SAMPLE


def body(name: str, files: dict[str, bytes]) -> bytes:
    """A body as the page sends it."""
    heading = {"name": name, "files": [[one, len(data)] for one, data in files.items()]}
    return json.dumps(heading).encode() + b"\n" + b"".join(files.values())


def word_of(page, name: str, files: dict[str, bytes]) -> str:
    """The word that names these files."""
    found = page.post("/api/given", content=body(name, files))
    assert found.status_code == 200, found.text
    return found.json()["word"]


def refusal(page, content: bytes) -> str:
    found = page.post("/api/given", content=content)
    assert found.status_code == 400
    return found.json()["error"]


@pytest.fixture
def trace(tmp_path):
    return {"load.jsonl": Path(trace_file(tmp_path / "load.jsonl")).read_bytes()}


def test_a_trace_is_simulated_as_its_file_is(page, tmp_path, trace):
    word = word_of(page, "load.jsonl", trace)
    assert re.fullmatch(r"given:[0-9a-f]{16}", word)
    assert word_of(page, "load.jsonl", trace) == word, "the same file has the same word"
    own = asked(page, "simulator", trace=word)
    by_path = asked(page, "simulator", trace=str(tmp_path / "load.jsonl"))
    assert own["tables"] == by_path["tables"]
    assert own["figures"] == by_path["figures"]
    assert "--trace load.jsonl" in own["commands"][0], "its own name, not where it is kept"


def test_a_folder_is_a_report(page):
    files = {one.name: one.read_bytes() for one in SAMPLE.iterdir()}
    word = word_of(page, "mine", files)
    found = asked(page, "programs", folder=word)
    assert found["figures"] == asked(page, "programs")["figures"]
    assert found["commands"] == ["shardwise report mine --top 40"]
    assert page.get("/api/trace/programs", params={"folder": word}).content[:2] == b"\x1f\x8b"


def test_what_a_file_lacks_is_said_by_its_own_name(page):
    word = word_of(page, "mine", {"train.ops.csv": b"op\n"})
    found = page.get("/api/view/programs", params={"folder": word})
    assert found.status_code == 400
    assert "'mine/compile.json'" in found.json()["error"]
    assert "shardwise-page-" not in found.text


def test_a_word_of_another_time_says_so(page, monkeypatch, trace):
    gone = "given:0123456789abcdef"
    found = page.get("/api/view/programs", params={"folder": gone})
    assert found.json()["error"] == (
        f"control 'folder' is {gone}; this page was not given it, or does not keep it any more; "
        "choose the file again"
    )
    monkeypatch.setattr(given, "ALL_KEPT", 3000)
    first = word_of(page, "load.jsonl", trace)
    word_of(page, "other.jsonl", trace)
    assert "choose the file again" in page.get(f"/api/view/simulator?trace={first}").text
    assert "choose the file again" in page.get("/api/view/simulator?trace=given:../../etc").text
    last = word_of(page, "other.jsonl", trace)
    shutil.rmtree(Path(given.path_of("trace", last)).parent)
    assert "choose the file again" in page.get(f"/api/view/simulator?trace={last}").text
    assert Path(given.path_of("trace", word_of(page, "other.jsonl", trace))).exists()


@pytest.mark.parametrize(
    "name", ["../up", "a/b", ".hidden", "", "a" * 101, "nul\0", "new\nline", "C:\\x"]
)
def test_a_name_leads_nowhere_else(page, name):
    said = refusal(page, body(name, {"compile.json": b"{}"}))
    assert "cannot be given; a name has letters" in said
    assert "cannot be given; a name has" in refusal(page, body("mine", {name: b""}))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no line of its files"),
        (b"[[[[\n", "the line of files"),
        (b'{"name": "a"}\n', "no line of its files"),
        (b'{"name": "a", "files": []}\n', "1 to 64 files"),
        (b'{"name": "a", "files": [["b", 1], ["b", 1]]}\nxx', "each name once"),
        (b'{"name": "a", "files": [["a", 5]]}\nxx', "did not come whole"),
        (b'{"name": "a", "files": [["b", 3], ["c", -1]]}\nxx', "did not come whole"),
        (b"x" * 20_000 + b"\n", "no line of its files"),
    ],
)
def test_what_is_no_such_body_is_refused(page, content, said):
    assert said in refusal(page, content)


def test_what_is_too_large_is_not_kept(page, monkeypatch, trace):
    monkeypatch.setattr(given, "LARGEST", 1000)
    assert "over 0 MiB; give less" in refusal(page, body("load.jsonl", trace))
    parts = iter([body("load.jsonl", trace)])  # without Content-Length
    assert "give less" in page.post("/api/given", content=parts).json()["error"]


@pytest.mark.parametrize("line", ["Origin: http://evil.example", "Sec-Fetch-Site: cross-site"])
def test_a_page_of_another_site_gives_nothing(line):
    content = body("load.jsonl", {"load.jsonl": b"{}"})
    with running() as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        for host, status in (("localhost", 403), ("elsewhere.example", 421)):
            head = f"POST /api/given HTTP/1.1\r\nHost: {host}\r\n{line}\r\n"
            sent = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
            assert status_of(tell(port, sent)) == status
