"""Batches follow from seed and step alone; packing keeps documents apart."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from runtime.trainer.made import make_text
from shardwise.errors import BadRequest
from shardwise.runtime.trainer import Bytes, Corpus, Feed, corpus_of, tokenizer_of
from shardwise.runtime.trainer.data import place


@given(st.integers(1, 300), st.integers(0, 5), st.integers(0, 5))
def test_an_order_visits_every_row_once(n, seed, epoch):
    assert sorted(place(i, n, seed, epoch) for i in range(n)) == list(range(n))


def test_orders_differ_by_seed_and_epoch():
    orders = {
        tuple(place(i, 50, seed, epoch) for i in range(50)) for seed in (0, 1) for epoch in (0, 1)
    }
    assert len(orders) == 4


def stream(*documents):
    starts = np.cumsum([0, *map(len, documents)])[:-1]
    return Corpus(np.concatenate([np.array(d, np.uint16) for d in documents]), starts, "x")


def rows_of(feed):
    n = feed.corpus.rows(feed.length)
    found = {int(feed.row(i)["tokens"][0]): feed.row(i) for i in range(n)}
    return [found[key] for key in sorted(found)]


def test_packed_rows_tell_documents_apart():
    feed = Feed(corpus=stream([1, 2, 3], [4, 5, 6, 7, 8, 9]), rows=1, length=4, seed=0)
    first, second = rows_of(feed)
    assert first["tokens"].tolist() == [1, 2, 3, 4]
    assert first["targets"].tolist() == [2, 3, 4, 5]
    assert first["weights"].tolist() == [1, 1, 0, 1]
    assert first["segments"].tolist() == [1, 1, 1, 2]
    assert first["positions"].tolist() == [0, 1, 2, 0]
    assert second["tokens"].tolist() == [5, 6, 7, 8]
    assert second["segments"].tolist() == [1, 1, 1, 1]
    assert second["positions"].tolist() == [0, 1, 2, 3]


def test_a_batch_is_the_same_wherever_a_run_begins():
    corpus = stream(list(range(1, 200)))
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    feed, again = (Feed(corpus=corpus, rows=4, length=7, seed=3) for _ in range(2))
    batches = [feed.batch(step, here) for step in range(20)]
    for name, value in again.batch(17, here).items():
        np.testing.assert_array_equal(value, batches[17][name])
    seen = np.concatenate([b["tokens"] for b in batches[:7]])
    assert len(np.unique(seen[:, 0])) == 28  # one epoch: each row once


def test_a_process_reads_only_the_rows_that_it_holds(monkeypatch):
    read = []
    original = Feed.row
    monkeypatch.setattr(Feed, "row", lambda self, i: read.append(i) or original(self, i))
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "context"))
    sharding = NamedSharding(mesh, PartitionSpec("data", "context"))
    feed = Feed(corpus=stream(list(range(100))), rows=8, length=4, seed=0)
    whole = feed.batch(1, sharding)
    assert read == list(range(8, 16))  # all are this process's, each read once
    assert whole["tokens"].sharding.is_equivalent_to(sharding, 2)


def test_a_folder_gives_its_text_files_in_order(tmp_path):
    data = make_text(tmp_path)
    (data / "binary.bin").write_bytes(b"a\0b")
    (data / ".hidden").write_text("no")
    (data / "__pycache__").mkdir()
    (data / "__pycache__" / "x.txt").write_text("no")
    (data / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    said = []
    corpus = corpus_of(data, Bytes(), tmp_path / "cache", said.append)
    assert said == [f"2 file(s) in '{data}' are not UTF-8 text and are skipped"]
    texts = [p.read_bytes() for p in sorted(data.rglob("file*"))]
    assert corpus.tokens.tolist() == [t for text in texts for t in [*text, 256]]
    assert len(corpus.starts) == 6
    again = corpus_of(data, Bytes(), tmp_path / "cache", writes=False)
    assert again.fingerprint == corpus.fingerprint
    (data / "more.txt").write_text("more")
    assert corpus_of(data, Bytes(), tmp_path / "cache").fingerprint != corpus.fingerprint


def written(path, data):
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: p / "nowhere", "there is no data at .*nowhere.*give --data a text file or"),
        (lambda p: (p / "empty").mkdir() or p / "empty", "holds no text"),
        (lambda p: written(p / "a.safetensors", b"ab\0c"), r"a\.safetensors' is not UTF-8 text"),
        (lambda p: written(p / "a.zip", b"PK\xff\xfe"), r"a\.zip' is not UTF-8 text; give --data"),
        (lambda p: written(p / "a.txt", b"cut \xe2\x82"), "is not UTF-8 text"),
    ],
)
def test_a_path_without_text_is_refused(tmp_path, make, text):
    with pytest.raises(BadRequest, match=text):
        corpus_of(make(tmp_path), Bytes(), tmp_path / "cache")


def test_a_character_on_the_edge_of_the_probe_is_text(tmp_path):
    file = written(tmp_path / "a.txt", ("a" * 8191 + "\u20ac").encode())
    assert len(corpus_of(file, Bytes(), tmp_path / "cache").tokens) == 8191 + 3 + 1


def _cut(folder):
    with (folder / "tokens.bin").open("r+b") as file:
        file.truncate(1000)


def _changed(folder):
    data = bytearray((folder / "tokens.bin").read_bytes())
    data[10] ^= 1
    (folder / "tokens.bin").write_bytes(data)


def _moved(folder):
    """A document that begins elsewhere: the tokens are right, their positions are not."""
    about = json.loads((folder / "corpus.json").read_text())
    about["starts"][1] += 1
    (folder / "corpus.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_cut, "it holds 500 of "),
        (_changed, "fingerprint"),
        (_moved, "fingerprint"),
        (lambda f: (f / "corpus.json").write_text('{"starts": ['), "corpus.json cannot be read"),
        (lambda f: (f / "corpus.json").write_text("[]"), "corpus.json cannot be read"),
        (lambda f: (f / "tokens.bin").write_bytes(b""), "it holds 0 of "),
    ],
)
def test_kept_tokens_that_were_damaged_are_made_anew(tmp_path, damage, said):
    data, notes = make_text(tmp_path), []
    whole = corpus_of(data, Bytes(), tmp_path / "cache")
    tokens = np.array(whole.tokens)
    damage(next((tmp_path / "cache").iterdir()))
    again = corpus_of(data, Bytes(), tmp_path / "cache", notes.append)
    np.testing.assert_array_equal(again.tokens, tokens)
    np.testing.assert_array_equal(again.starts, whole.starts)
    assert again.fingerprint == whole.fingerprint
    assert len(notes) == 1
    assert said in notes[0]
    assert notes[0].startswith("the tokens in '")
    assert notes[0].endswith("); reading the text again")
    notes.clear()
    corpus_of(data, Bytes(), tmp_path / "cache", notes.append)
    assert not notes


def test_a_process_waits_for_tokens_that_are_whole(tmp_path):
    data = make_text(tmp_path)
    whole = corpus_of(data, Bytes(), tmp_path / "cache")
    tokens = np.array(whole.tokens)
    _cut(next((tmp_path / "cache").iterdir()))
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(corpus_of, data, Bytes(), tmp_path / "cache", writes=False)
        time.sleep(0.3)
        assert not waits.done()
        corpus_of(data, Bytes(), tmp_path / "cache")
        np.testing.assert_array_equal(waits.result(timeout=30).tokens, tokens)


def test_tokens_are_on_the_disk_before_they_appear(tmp_path, monkeypatch):
    forced = []
    monkeypatch.setattr(
        os, "fsync", lambda handle: forced.append(os.readlink(f"/proc/self/fd/{handle}"))
    )
    corpus_of(make_text(tmp_path), Bytes(), tmp_path / "cache")
    assert [name.rpartition("/")[2] for name in forced] == [
        "corpus.json.part",
        "tokens.bin",
        forced[2].rpartition("/")[2],
        "cache",
    ]
    assert forced[2].endswith(".tmp")


def test_text_without_a_token_is_too_little(tmp_path):
    class Deaf(Bytes):
        end = None

        def encode(self, text):
            return np.zeros(0, np.uint8)

    corpus = corpus_of(make_text(tmp_path), Deaf(), tmp_path / "cache")
    with pytest.raises(BadRequest, match="holds 0 tokens"):
        Feed(corpus=corpus, rows=1, length=4, seed=0)


def test_too_little_text_is_refused():
    with pytest.raises(BadRequest, match="holds 4 tokens, too few for one sequence of 4"):
        Feed(corpus=stream([1, 2, 3, 4]), rows=1, length=4, seed=0)


def test_a_tokenizer_file(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    made = Tokenizer(WordLevel({"a": 0, "b": 1, "[UNK]": 2, "</s>": 3}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    found = tokenizer_of(tmp_path / "tokenizer.json", 10)
    assert (found.vocabulary, found.end) == (4, 3)
    assert found.encode(b"a b c").tolist() == [0, 1, 2]
    with pytest.raises(BadRequest, match="ids up to 3 and the model has a vocabulary of 3"):
        tokenizer_of(tmp_path / "tokenizer.json", 3)


def test_what_is_no_tokenizer_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="cannot read the tokenizer"):
        tokenizer_of(tmp_path / "none.json", 10)
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(BadRequest, match=r"is not a tokenizer.json"):
        tokenizer_of(tmp_path / "bad.json", 10)
    with pytest.raises(
        BadRequest, match=r"ids up to 256 .* vocabulary of 256; .* vocab_size 257 or more"
    ):
        tokenizer_of(None, 256)
