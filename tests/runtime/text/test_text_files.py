"""A checkpoint's text files: what is wrong in them is said by file and key; nothing explodes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.apps.server.made import folder_of, tokenizer

from shardwise.errors import BadRequest
from shardwise.runtime.text.model_text import read_model_text
from shardwise.runtime.text.tokenizer import FromFile


def damaged(folder, **files):
    """A folder's text with the contents of some files, or their keys, changed."""
    folder_of(folder)
    for name, value in files.items():
        path = folder / f"{name}.json"
        held = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**held, **value} if isinstance(value, dict) else value))
    return folder


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"config": {"eos_token_id": [["a"]]}}, r"config.json': eos_token_id is \[\['a'\]\]"),
        ({"config": {"eos_token_id": "2"}}, "eos_token_id is '2'; it must be a token id"),
        ({"config": {"eos_token_id": True}}, "eos_token_id is True"),
        ({"config": {"eos_token_id": {"a": 1}}}, "eos_token_id is {'a': 1}"),
        ({"config": {"eos_token_id": 2**40}}, "eos_token_id is 1099511627776"),
        ({"generation_config": {"eos_token_id": [1.5]}}, r"generation_config.json': eos_token_id"),
        ({"generation_config": {"top_k": 1e300}}, r"generation_config.json': top_k is 1e\+300"),
        ({"generation_config": {"top_k": 1.5}}, "a whole number from -1"),
        ({"generation_config": {"top_p": 0}}, "a number above 0 to 1"),
        ({"generation_config": {"temperature": "hot"}}, "temperature is 'hot'"),
        ({"generation_config": {"min_p": [1]}}, r"min_p is \[1\]"),
        ({"generation_config": {"repetition_penalty": -1}}, "repetition_penalty is -1"),
        ({"generation_config": {"do_sample": "yes"}}, "do_sample is 'yes'"),
        ({"tokenizer_config": {"chat_template": [{"name": ["x"]}]}}, "chat_template is"),
        ({"tokenizer_config": {"chat_template": ["x"]}}, "names and texts"),
        ({"tokenizer_config": {"chat_template": 7}}, "chat_template is 7; it must be a text"),
        (
            {"tokenizer_config": {"chat_template": [{"name": "default", "template": 1}]}},
            "chat_template is 1",
        ),
    ],
)
def test_a_value_that_is_none_is_named_with_its_file(tmp_path, files, says):
    with pytest.raises(BadRequest, match=says) as error:
        read_model_text(damaged(tmp_path, **files))
    assert str(tmp_path) in str(error.value)


def test_what_is_unusual_and_right_is_taken(tmp_path):
    generation = {"eos_token_id": [7, -1], "top_k": 20.0, "temperature": None, "top_p": 1}
    text = read_model_text(damaged(tmp_path, generation_config=generation))
    assert text.end_ids == {1, 7}
    assert text.defaults == {"top_k": 20, "top_p": 1}
    off = {"do_sample": False, "top_k": 1e300}
    assert read_model_text(damaged(tmp_path, generation_config=off)).defaults == {}


def document(**changes):
    return {**json.loads(tokenizer().to_str()), **changes}


def replace(what, put, regex=False):
    return {"type": "Replace", "pattern": {"Regex" if regex else "String": what}, "content": put}


def sequence(*steps):
    return {"type": "Sequence", "normalizers": list(steps)}


EMPTY = {**document()["model"], "vocab": {}, "merges": []}
HUGE = {**document()["model"], "vocab": {**document()["model"]["vocab"], "far": 2**32 - 1}}
AROUND = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * 2000,
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [0] * 2000, "tokens": ["<s>"] * 2000}},
}
EXPLODING = {
    "six replacements": document(normalizer=sequence(*[replace("a", "a" * 100)] * 6)),
    "one long one": document(normalizer=replace("a", "b" * 10_000)),
    "patterns": document(normalizer=sequence(*[replace("x*", "xyz", regex=True)] * 9)),
    "chain": document(
        normalizer=sequence(*(replace(a, b * 9) for a, b in zip("abcde", "bcdef", strict=True)))
    ),
    "nothing": document(normalizer=sequence(*[replace("", "ab")] * 30)),
    "decoder": document(
        decoder={"type": "Sequence", "decoders": [replace("a", "aa")] * 30},
    ),
    "around": document(post_processor=AROUND),
    "empty": document(model=EMPTY, added_tokens=[]),
    "far ids": document(model=HUGE),
    "a list": [],
    "no model": {},
    "deep": document(normalizer=json.loads('{"normalizers": [' * 60 + "]}" * 60)),
    "affix": document(decoder={"type": "WordPiece", "prefix": "#" * 10**6, "cleanup": True}),
}


@pytest.mark.parametrize("kind", EXPLODING)
def test_a_tokenizer_that_makes_much_of_little_is_refused(tmp_path, kind):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(EXPLODING[kind]))
    with pytest.raises(BadRequest, match="tokenizer") as error:
        FromFile(path)
    assert str(path) in str(error.value)
    assert "from the model's own folder" in str(error.value)


@pytest.mark.parametrize(
    "normalizer",
    [
        sequence({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),
        sequence(
            replace("``", '"'), replace("''", '"'), {"type": "NFKD"}, replace(" {2,}", " ", True)
        ),
        replace("œ", "oe"),
        sequence(*(replace(a, f"{a}{a}") for a in "…–—¡¿")),
    ],
)
def test_what_published_tokenizers_replace_is_read(tmp_path, normalizer):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document(normalizer=normalizer)))
    assert len(FromFile(path).encode(b"the quick fox"))


FIXED = {
    "strategy": {"Fixed": 300_000_000},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "<s>",
}
CUT = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}


@pytest.mark.parametrize("changes", [{"padding": FIXED}, {"truncation": CUT}])
def test_a_tokenizer_neither_cuts_nor_fills_up_a_text(tmp_path, changes):
    """Training text of 11,748 tokens had 4, and every prompt 300 million."""
    words = "the quick brown fox jumps over the lazy dog " * 20
    plain, path = tmp_path / "plain.json", folder_of(tmp_path) / "tokenizer.json"
    plain.write_text(json.dumps(document()))
    path.write_text(json.dumps(document(**changes)))
    whole, found = FromFile(plain), FromFile(path)
    assert found.encode(words.encode()).tolist() == whole.encode(words.encode()).tolist()
    assert read_model_text(tmp_path).encode(words)[1:] == whole.encode(words.encode()).tolist()
    assert found.name != whole.name  # text that was cut before is read again


def test_a_pattern_that_gives_up_is_no_end_of_the_program(tmp_path):
    """Rust's panic is no Exception."""
    path = tmp_path / "tokenizer.json"
    split = {"pattern": {"Regex": "(a|a)*$"}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps(document(pre_tokenizer={"type": "Split", **split})))
    with pytest.raises(BadRequest, match=r"cannot read a text: .*retry-limit"):
        FromFile(path).encode(b"a" * 40 + b"b")


def test_a_panic_tells_nothing_of_the_librarys_own_stack(tmp_path):
    """With RUST_BACKTRACE it was some 5,000 characters before the message."""
    path = tmp_path / "tokenizer.json"
    split = {"pattern": {"Regex": "(a|a)*$"}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps(document(pre_tokenizer={"type": "Split", **split})))
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from shardwise.runtime.text.tokenizer import FromFile\n"
        "FromFile(Path(sys.argv[1])).encode(b'a' * 40 + b'b')\n"
    )
    around = {**os.environ, "RUST_BACKTRACE": "full"}
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=around)
    assert "cannot read a text" in done.stderr
    assert "stack backtrace" not in done.stderr


@pytest.mark.parametrize("kind", ["fifo", "zero", "folder"])
def test_what_is_no_file_is_not_read(tmp_path, kind):
    """A pipe without a writer hung, and /dev/zero filled the memory: here from the command."""
    path = tmp_path / "tokenizer.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
        "from pathlib import Path; from shardwise.errors import BadRequest\n"
        "from shardwise.runtime.text.tokenizer import FromFile\n"
        "try: FromFile(Path(sys.argv[1]))\n"
        "except BadRequest as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "it is not a file; use the file from the model's own folder" in done.stdout, done.stderr


def test_a_folder_of_another_name_is_none():
    with pytest.raises(BadRequest, match="is not a folder"):
        read_model_text(Path("a" * 5000))
