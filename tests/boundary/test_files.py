"""Files, pipes and archives: limited, in UTF-8, and never waited for without end."""

import gzip
import os
import threading
from pathlib import Path

import pytest

from shardwise.boundary import is_file, is_folder, read_bytes, read_lines, read_packed, read_text
from shardwise.errors import BadRequest

GIB = 2**30


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/dev/zero", "it is not a file"),
        ("/dev/null", "it is not a file"),
        ("/", "it is a folder"),
        ("a" * 300, "file name too long"),
        ("a\0b", "embedded null byte"),
        ("a/b/c", "no such file or directory"),
    ],
)
def test_what_is_no_file_is_refused(path, said):
    with pytest.raises(BadRequest, match=f"cannot read the thing '.*': {said}"):
        read_bytes(Path(path), "the thing")
    assert not is_file(Path(path))
    assert is_folder(Path(path)) == (path == "/")


def test_a_link_to_itself(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(BadRequest, match="too many levels of symbolic links"):
        read_bytes(loop, "the thing")


def test_a_pipe_is_read_and_one_that_nobody_writes_is_not_waited_for(tmp_path, monkeypatch):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("ü" * 100_000))
    writer.start()
    # The door does not wait for a writer that has not opened the pipe yet.
    handle = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    writer.join(0.2)
    monkeypatch.setattr("shardwise.boundary.files.PIPE_SECONDS", 0.5)
    with pytest.raises(BadRequest, match=r"is a pipe that delivered nothing for 0.5 s"):
        read_text(pipe, "the thing")
    writer.join()
    os.close(handle)
    path = tmp_path / "long"
    path.write_text("x" * 11)
    with pytest.raises(BadRequest, match="longer than 10 B"):
        read_bytes(path, "the thing", most=10)


def test_lines_end_as_in_an_editor(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes("a\u2028b\x0bc\r\nd\re\n".encode())
    assert read_lines(path, "the thing") == ["a\u2028b\x0bc", "d", "e"]


@pytest.mark.slow
def test_gzip_is_unpacked_up_to_its_limit(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"one") + gzip.compress(b"two"))
    assert read_packed(path, "the capture") == b"onetwo"
    piece = gzip.compress(bytes(64 * 2**20), 9)
    path.write_bytes(piece * 32)  # 2 MB that hold 2 GB
    with pytest.raises(BadRequest, match=r"unpacks to more than 67.1 MB"):
        read_packed(path, "the capture")
    for damaged in (piece[:-1], piece[:9], b"\x1f\x8b", b"no gzip at all", b""):
        path.write_bytes(damaged)
        with pytest.raises(BadRequest, match=r"is not a whole gzip file|is empty"):
            read_packed(path, "the capture")
