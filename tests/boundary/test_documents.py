"""JSON, YAML and TOML: whole values within their limits, or one message; bombs cost nothing."""

import json
import time

import pytest

from shardwise.boundary import (
    finite,
    parse_json,
    parse_toml,
    parse_yaml,
    read_json,
    read_toml,
    read_yaml,
    to_json,
)
from shardwise.boundary.documents import DEEPEST, YAML_BYTES
from shardwise.errors import BadRequest

SECONDS = 20.0
LEVELS = range(1, 12)
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in LEVELS
)
MERGES = "a0: &a0 {x: 1}\n" + "\n".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in LEVELS
)
LONG_TEXT = f"a: &a {'x' * 60_000}\nb: [{'*a, ' * 20_000}]"
DIGITS = "9" * 5000


def refused(parse, text):
    """The message, given within the time that a door has."""
    begun = time.process_time()
    with pytest.raises(BadRequest) as error:
        parse(text, "it")
    assert time.process_time() - begun < SECONDS
    assert len(str(error.value)) < 500
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is not JSON at column 1"),
        ("{", "it is not JSON at column 2"),
        ('{"a": 1,\n "b" 2}', "it is not JSON at line 2 column 6"),
        ("[" * 100_000, "it nests deeper than 50 levels"),
        ('{"a":' * 100_000, "it nests deeper than 50 levels"),
        ("[" * 51 + "]" * 51, "it nests deeper than 50 levels"),
        ("NaN", "a number is NaN; numbers must be finite"),
        ('{"a": -Infinity}', "a number is -Infinity; numbers must be finite"),
        ("1e400", "a number is '1e400'; numbers must be finite"),
        (DIGITS, "a number has 5000 digits, over 40"),
        ('{"a": 1, "a": 2}', "the key 'a' appears twice; keep one"),
        ('{"a": "\\ud800"}', "'a' holds half of a surrogate pair, which is not text"),
        ('{"\\udc00": 1}', "holds half of a surrogate pair"),
    ],
)
def test_json_that_is_refused(text, said):
    assert said in refused(parse_json, text)


def test_json_that_is_read():
    held = {"a": [1, -2.5, None, True, "ü\u2028😀"], "b": {"c": []}}
    assert parse_json(json.dumps(held), "it") == held
    assert parse_json("[" * DEEPEST + "]" * DEEPEST, "it")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LAUGHS, "it holds more than 50,000 values"),
        (MERGES, "it holds more than 50,000 values"),
        (LONG_TEXT, "it holds more than 50,000 values"),
        ("&a [*a]", "line 1: an alias of its own container"),
        ("&a {<<: *a}", "line 1: an alias of its own container"),
        ("[" * 100_000, "it nests deeper than 50 levels"),
        ("- " * 60_000, "it nests deeper than 50 levels"),
        ("\n".join(" " * i + "a:" for i in range(300)), "it nests deeper than 50 levels"),
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' appears twice; keep one"),
        ("a: .nan", "'a' is nan; numbers must be finite"),
        ("a: {b: .inf}", "'a.b' is inf; numbers must be finite"),
        ("a: 1.0e+400", "'a' is inf; numbers must be finite"),
        (f"a: {DIGITS}", "it is not YAML"),
        (f"a: 0x{'f' * 100_000}", "'a' has over 40 digits"),
        (f"a: {'59:' * 30_000}1.0", "it is not YAML"),
        ("a: 2024-13-01", "it is not YAML: month must be in 1..12"),
        ("7: x", "the key 7 is not text; quote it"),
        ("[a]: x", "line 1: a key is not text"),
        ("a: !!binary aaaa", "'a' is of type bytes"),
        ("a: !!python/object/apply:os.system [x]", "could not determine a constructor"),
        ('a: "\\ud800"', "it is not YAML"),
        ("a: 1\n---\nb: 2", "it is not YAML at line 2 column 1"),
    ],
)
def test_yaml_that_is_refused(text, said):
    if said == "it is not YAML" and "ud800" in text:
        said = "half of a surrogate pair"
    assert said in refused(parse_yaml, text)


def test_yaml_that_is_read():
    text = "a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]"
    assert parse_yaml(text, "it") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}] * 2}
    assert parse_yaml("", "it") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (".".join("a" * 100_000) + " = 1", "it has a key of more than 50 parts"),
        (" . ".join("a" * 30_000) + " = 1", "it has a key of more than 50 parts"),
        ("[" + ".".join("a" * 60_000) + "]", "it has a key of more than 50 parts"),
        (".".join(['"\\""'] * 30_000) + " = 1", "it has a key of more than 50 parts"),
        (f"x = {{{'.'.join('a' * 60_000)} = 1}}", "it has a key of more than 50 parts"),
        ("a = " + "[" * 100_000, "it nests deeper than 50 levels"),
        ("a = " + "{a = " * 20_000, "it nests deeper than 50 levels"),
        (f"a = {DIGITS}", "it is not TOML"),
        (f"a = 0x{'f' * 100_000}", "'a' has over 40 digits"),
        ("a = inf", "'a' is inf; numbers must be finite"),
        ("a = 1e400", "'a' is inf; numbers must be finite"),
        ("a = 1\na = 2", "it is not TOML: Cannot overwrite a value"),
    ],
)
def test_toml_that_is_refused(text, said):
    assert said in refused(parse_toml, text)


def test_toml_that_is_read():
    dots = ".".join("a" * 60)
    assert parse_toml(f'a = "{dots}"\n[b.c]\nd = [1, 2.5]', "it") == {
        "a": dots,
        "b": {"c": {"d": [1, 2.5]}},
    }


@pytest.mark.parametrize("read", [read_json, read_yaml, read_toml])
def test_files_that_are_refused(tmp_path, read):
    path = tmp_path / "file"
    with pytest.raises(
        BadRequest, match=r"cannot read the file '.*': no such file or directory; x"
    ):
        read(path, "the file", remedy="x")
    for data, said in (
        (b"\xff\xfea\x00", "not text in UTF-8 but in UTF-16"),
        (b"a\x00", "line 1 holds a NUL byte"),
        (b"ok\n\xff", r"not text in UTF-8 \(byte 3, line 2\)"),
        (b" " * (4 * 2**20 + 1), "longer than "),
    ):
        path.write_bytes(data)
        with pytest.raises(BadRequest, match=said):
            read(path, "the file")


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    path = tmp_path / "file"
    for read, text in ((read_json, '{"a": 1}'), (read_yaml, "a: 1"), (read_toml, "a = 1")):
        path.write_text(text, encoding="utf-8-sig")
        assert read(path, "the file") == {"a": 1}


def test_what_a_person_writes_is_short(tmp_path):
    path = tmp_path / "file"
    path.write_text("#" * (YAML_BYTES + 1))
    for read in (read_yaml, read_toml):
        with pytest.raises(BadRequest, match="longer than 131 kB"):
            read(path, "the file")


def test_documents_that_are_written_hold_no_infinity():
    held, gone = finite({"a": {"b": float("inf"), "c": [1.0, float("nan")]}, "d": "inf"})
    assert held == {"a": {"b": None, "c": [1.0, None]}, "d": "inf"}
    assert gone == ["a.b is inf", "a.c[1] is nan"]
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"a": float("inf")})
    assert json.loads(to_json({"a": "x\udcff"})) == {"a": "x\udcff"}
    to_json("x\udcff").encode()
