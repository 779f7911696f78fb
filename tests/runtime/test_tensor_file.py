"""Safetensors of strangers: what the library refuses is refused here, by what is wrong; an index
names files of its own folder alone."""

import json
import os
import struct

import numpy as np
import pytest

from shardwise.errors import BadRequest
from shardwise.runtime.tensor_file import INDEX, read_folder, read_header, write_file


def entry(begin, end, shape=(4,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def put(folder, header, data=bytes(range(32))):
    """A file with this header, as bytes or as what JSON is made of, and 32 bytes of data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


TWICE = b'{"a": %s, "b": %s, "a": %s}' % tuple(
    json.dumps(x).encode() for x in (entry(0, 16), entry(16, 32), entry(0, 16, dtype="I32"))
)
WHOLE = json.dumps({"a": entry(0, 32, (8,))})


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"a": entry(0, 16), "b": entry(8, 24), "c": entry(24, 32, (2,))}, "invalid offset"),
        ({"a": entry(0, 16), "b": entry(0, 16), "c": entry(16, 32)}, "invalid offset"),
        ({"a": entry(-16, 0), "b": entry(0, 32, (8,))}, "`-16`"),
        ({"b": entry(16, 32)}, "invalid offset"),
        ({"a": entry(0, 16)}, "cut off, or has data after its tensors"),
        ({"a": entry(0, 4, (True,)), "b": entry(4, 32, (7,))}, "boolean `true`"),
        ({"a": entry(0, 16, (4.0,)), "b": entry(16, 32)}, "floating point `4.0`"),
        ({"a": entry(0, 16, (-2, -2)), "b": entry(16, 32)}, "`-2`"),
        ({"a": entry(0, 32, (7,))}, "invalid shape"),
        ({"a": entry(0, 32, (2**62, 2**62))}, "overflow"),
        ({"a": entry(0, 32, (8,), "Q4")}, "unknown variant `Q4`"),
        ({"__metadata__": {"a": 1}, "a": entry(0, 32, (8,))}, "expected a string"),
        (TWICE, "the header names 'a' twice"),
        (b"\xef\xbb\xbf" + WHOLE.encode(), "invalid JSON"),
        (WHOLE.encode("utf-16"), "invalid UTF-8"),
        (b"[" * 100_000, "invalid JSON"),
        (b"[]", "invalid JSON"),
    ],
    ids=lambda x: x.split("'")[0][:20] if isinstance(x, str) else "",
)
def test_a_header_that_is_not_true_is_refused(tmp_path, header, said):
    path = put(tmp_path, header)
    with pytest.raises(BadRequest) as raised:
        read_folder(tmp_path)
    assert str(raised.value).startswith(f"{path}: not a complete safetensors file (")
    assert said in str(raised.value)
    assert "; fetch it again" in str(raised.value)


def test_a_dtype_that_is_not_read_is_named(tmp_path):
    put(tmp_path, {"a": entry(0, 32, (64,), "F4")})
    with pytest.raises(BadRequest, match="tensor 'a' has dtype F4, which is not supported; conv"):
        read_folder(tmp_path)


@pytest.mark.parametrize("raw", [b"", b"\0" * 7, struct.pack("<Q", 2**63) + b"{}", b"\xff" * 40])
def test_a_file_without_a_header_is_refused(tmp_path, raw):
    (tmp_path / "x.safetensors").write_bytes(raw)
    with pytest.raises(BadRequest, match=r"not a complete safetensors file \(.*header"):
        read_header(tmp_path / "x.safetensors")


def test_a_header_of_a_gigabyte_is_not_read(tmp_path):
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 90_000_000))
        file.truncate(90_000_100)  # sparse
    with pytest.raises(BadRequest, match=r"its header claims 90,000,000 bytes; the limit is 25"):
        read_header(path)


def test_what_is_written_is_read(tmp_path):
    made = {
        "none": np.zeros((0, 3), np.float32),
        "one": np.array([3], np.int64),
        "wide": np.arange(6, dtype=np.uint16).reshape(2, 3),
    }
    planned = [(name, value.shape, value.dtype) for name, value in made.items()]
    write_file(tmp_path / "a.safetensors", planned, made.__getitem__)
    found = read_header(tmp_path / "a.safetensors")
    assert set(found) == set(made)
    for name, value in made.items():
        np.testing.assert_array_equal(found[name].open(), value)


def an_index(folder, names):
    folder.mkdir(exist_ok=True)
    (folder / INDEX).write_text(json.dumps({"weight_map": names}))


def a_tensor(path, value=1.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, [("w", (2,), np.dtype(np.float32))], lambda _: np.full(2, value, np.float32))


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "sub/../../x.safetensors", "{folder}/x.safetensors", "..", "", "a\0b"],
)
def test_an_index_does_not_leave_its_folder(tmp_path, name):
    a_tensor(tmp_path / "x.safetensors")
    an_index(tmp_path / "model", {"w": name.format(folder=tmp_path)})
    with pytest.raises(
        BadRequest, match="it may name only files in its own folder; fetch the checkpoint again"
    ):
        read_folder(tmp_path / "model")


@pytest.mark.parametrize("names", [{"w": 3}, {"w": ["a"]}, ["a"], {"w": None}, "a"])
def test_an_index_that_names_no_files(tmp_path, names):
    an_index(tmp_path, names)
    with pytest.raises(BadRequest, match=r"index\.json: it has no readable weight_map of tensors"):
        read_folder(tmp_path)


def test_an_index_with_a_very_long_name(tmp_path):
    an_index(tmp_path, {"w": "x" * 5000})
    with pytest.raises(BadRequest, match="which does not exist; fetch it"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    "raw", [b"[" * 100_000, b"\xff\xfe{}", b"{", b'{"weight_map": {"w": "a", "w": "b"}}']
)
def test_an_index_that_is_no_json(tmp_path, raw):
    (tmp_path / INDEX).write_bytes(raw)
    with pytest.raises(
        BadRequest, match=r"the index of weights '.*index\.json'.*; fetch the ch|UTF-8"
    ):
        read_folder(tmp_path)


def test_links_as_in_the_cache_of_hugging_face(tmp_path):
    """snapshots/REVISION/NAME is a link to ../../blobs/HASH: the name stays in its folder."""
    a_tensor(tmp_path / "blobs" / "0123", 7.0)
    shot = tmp_path / "snapshots" / "main"
    shot.mkdir(parents=True)
    os.symlink("../../blobs/0123", shot / "model-00001-of-00001.safetensors")
    an_index(shot, {"w": "model-00001-of-00001.safetensors"})
    np.testing.assert_array_equal(read_folder(shot)["w"].open(), [7, 7])


def test_an_index_that_an_editor_gave_a_bom(tmp_path):
    a_tensor(tmp_path / "a.safetensors")
    (tmp_path / INDEX).write_bytes(b"\xef\xbb\xbf" + b'{"weight_map": {"w": "a.safetensors"}}')
    assert set(read_folder(tmp_path)) == {"w"}
