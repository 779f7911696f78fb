"""The cache keeps whole entries, finds them by content, and stays within its limit."""

import gzip
import os
import random
import shutil

import pytest

from shardwise.profiler.ahead import cache as kept
from shardwise.profiler.ahead.cache import CompileCache, default_root, key_of


@pytest.fixture
def cache(tmp_path):
    return CompileCache(root=tmp_path / "compiled", limit=100_000)


def noise(size, seed):
    return random.Random(seed).randbytes(size).hex()


def test_what_is_stored_is_found_again(cache):
    assert cache.load("k") is None
    cache.store("k", {"fits": True}, "HloModule a\n")
    assert cache.has("k")
    assert cache.load("k") == ({"fits": True}, "HloModule a\n")
    assert [p.name for p in (cache.root / "entries").iterdir()] == ["k"]


def test_a_damaged_entry_is_no_entry(cache):
    cache.store("k", {}, "HloModule a\n")
    (cache.entry("k") / "hlo.txt.gz").write_bytes(b"no gzip")
    assert cache.load("k") is None
    assert not cache.has("k")


def test_what_changes_after_its_checksum_changes_nothing(cache, monkeypatch):
    """Another process writes another program's bytes in between."""
    cache.store("k", {"name": "k"}, "HloModule k\n")
    cache.store("other", {"name": "other"}, "HloModule other\n")
    check = kept._sums

    def changed(files, key):
        found = check(files, key)
        for name in ("record.json", "hlo.txt.gz"):
            shutil.copy(cache.entry("other") / name, cache.entry("k") / name)
        return found

    monkeypatch.setattr(kept, "_sums", changed)
    assert cache.load("k") == ({"name": "k"}, "HloModule k\n")


def test_the_entries_used_longest_ago_go_first(cache):
    for age, key in ((300, "old"), (200, "used"), (100, "new")):
        cache.store(key, {}, noise(30_000, key))
        when = cache.entry(key).stat().st_mtime - age
        os.utime(cache.entry(key), (when, when))
    assert cache.load("used") is not None
    cache.store("newest", {}, noise(30_000, "newest"))
    kept = {p.name for p in (cache.root / "entries").iterdir()}
    assert kept == {"used", "newest"} | ({"new"} if cache.has("new") else set())
    assert not cache.has("old")
    assert cache.size() <= cache.limit


def test_an_entry_larger_than_the_limit_is_kept_until_the_next(cache):
    cache.store("huge", {}, noise(400_000, 1))
    assert cache.has("huge")
    cache.store("small", {}, "x")
    assert not cache.has("huge")


def test_requests_lead_to_entries_that_are_there(cache):
    cache.store("k", {}, "x")
    cache.remember("asked", "k")
    cache.remember("gone", "nowhere")
    assert cache.follow("asked") == "k"
    cache.prune()
    assert cache.follow("asked") == "k"
    assert cache.follow("gone") is None


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    cache = CompileCache(root=tmp_path / "file" / "compiled")
    cache.store("k", {}, "x")
    cache.remember("asked", "k")
    assert cache.load("k") is None
    assert cache.follow("asked") is None


def test_keys_follow_what_they_are_made_of():
    assert key_of("a", {"b": 1}) == key_of("a", {"b": 1})
    assert len({key_of("a"), key_of("b"), key_of("a", {}), key_of(["a"])}) == 4


def test_the_cache_is_where_xdg_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "shardwise" / "compiled"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_root().parts[-3:] == (".cache", "shardwise", "compiled")


KEY, RECORD, HLO = "k", {"fits": True}, "HloModule a\n" * 100


def replaced(path, made):
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    made(path)


def flipped(path):
    data = bytearray(path.read_bytes())
    for i in range(12, len(data) - 8):
        data[i] ^= 0x55
    path.write_bytes(data)


def bomb(path):
    """Two gigabytes of zeros in 2 MB."""
    with gzip.open(path, "wb", compresslevel=9) as file:
        for _ in range(2**11):
            file.write(bytes(2**20))


BOMB = "a text unpacks to gigabytes"
DAMAGE = {
    "an entry is a file": lambda c: replaced(c.entry(KEY), lambda p: p.write_text("x")),
    "an entry is a link to nowhere": lambda c: replaced(
        c.entry(KEY), lambda p: p.symlink_to("nowhere")
    ),
    "an entry is empty": lambda c: replaced(c.entry(KEY), lambda p: p.mkdir()),
    "no record": lambda c: (c.entry(KEY) / "record.json").unlink(),
    "a record is a folder": lambda c: replaced(
        c.entry(KEY) / "record.json", lambda p: (p / "in").mkdir(parents=True)
    ),
    "a record is binary": lambda c: (c.entry(KEY) / "record.json").write_bytes(b"\xff\x00\x80"),
    "a record is a list": lambda c: (c.entry(KEY) / "record.json").write_text("[]"),
    "a record is deep": lambda c: (c.entry(KEY) / "record.json").write_text("[" * 100_000),
    "a record is cut off": lambda c: (c.entry(KEY) / "record.json").write_text('{"fits'),
    "another record": lambda c: (c.entry(KEY) / "record.json").write_text('{"fits": false}'),
    "no text": lambda c: (c.entry(KEY) / "hlo.txt.gz").unlink(),
    "a text is cut off": lambda c: (c.entry(KEY) / "hlo.txt.gz").write_bytes(
        (c.entry(KEY) / "hlo.txt.gz").read_bytes()[:-9]
    ),
    "another text": lambda c: (c.entry(KEY) / "hlo.txt.gz").write_bytes(
        gzip.compress(b"HloModule other")
    ),
    "a text is not text": lambda c: (c.entry(KEY) / "hlo.txt.gz").write_bytes(
        gzip.compress(b"\xff\xfe\x80")
    ),
    "a text is a folder": lambda c: replaced(c.entry(KEY) / "hlo.txt.gz", lambda p: p.mkdir()),
    "a text's bits are flipped": lambda c: flipped(c.entry(KEY) / "hlo.txt.gz"),
    "a text is a pipe": lambda c: replaced(c.entry(KEY) / "hlo.txt.gz", os.mkfifo),
    BOMB: lambda c: bomb(c.entry(KEY) / "hlo.txt.gz"),
    "another's entry": lambda c: (
        c.store("other", {}, "HloModule b\n"),
        replaced(c.entry(KEY), c.entry("other").rename),
    ),
    "entries is a file": lambda c: replaced(c.root / "entries", lambda p: p.write_text("x")),
    "entries is a link to nowhere": lambda c: replaced(
        c.root / "entries", lambda p: p.symlink_to("nowhere")
    ),
    "requests is a file": lambda c: replaced(c.root / "requests", lambda p: p.write_text("x")),
    "a request is a folder": lambda c: replaced(
        c.root / "requests" / "asked", lambda p: (p / "in").mkdir(parents=True)
    ),
    "a request is binary": lambda c: (c.root / "requests" / "asked").write_bytes(b"\xff\x00\x80"),
    "a request is empty": lambda c: (c.root / "requests" / "asked").write_bytes(b""),
    "a request leads out": lambda c: (c.root / "requests" / "asked").write_text("../../precious"),
    "another's request": lambda c: (
        c.remember("asked too", "other"),
        (c.root / "requests" / "asked too").rename(c.root / "requests" / "asked"),
    ),
    "a request is a pipe": lambda c: replaced(c.root / "requests" / "asked", os.mkfifo),
}


@pytest.mark.parametrize(
    "kind",
    [*(kind for kind in DAMAGE if kind != BOMB), pytest.param(BOMB, marks=pytest.mark.slow)],
)
def test_any_damage_is_a_miss_and_the_next_store_heals(cache, kind):
    precious = cache.root.parent / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    cache.store(KEY, RECORD, HLO)
    cache.remember("asked", KEY)
    assert cache.load(cache.follow("asked")) == (RECORD, HLO)
    DAMAGE[kind](cache)
    key = cache.follow("asked")
    assert key in (KEY, None)
    assert cache.load(KEY) in ((RECORD, HLO), None)
    assert (
        kind.startswith(("requests is", "a request", "another's request"))
        or cache.load(KEY) is None
    )
    assert not cache.has(KEY) or cache.load(KEY) is not None
    cache.prune()
    cache.size()
    cache.store(KEY, RECORD, HLO)
    cache.remember("asked", KEY)
    assert cache.follow("asked") == KEY
    assert cache.load(KEY) == (RECORD, HLO)
    left = {p.name for folder in ("entries", "requests") for p in (cache.root / folder).iterdir()}
    assert left == {KEY, "asked"}
    assert (precious / "file").read_text() == "mine"


def test_a_whole_entry_that_cannot_be_touched_is_still_read(cache, monkeypatch):
    """Another's, on a read-only disk: its time of use stays as it is."""
    cache.store(KEY, RECORD, HLO)

    def refused(*_, **__):
        raise PermissionError

    monkeypatch.setattr(os, "utime", refused)
    assert cache.load(KEY) == (RECORD, HLO)


def test_a_damaged_entry_that_cannot_be_removed_is_a_miss_each_time(cache, monkeypatch):
    cache.store(KEY, RECORD, HLO)
    (cache.entry(KEY) / "record.json").write_text("[]")

    def refused(*_, **__):
        raise PermissionError

    for name in ("rename", "replace", "rmdir", "unlink"):
        monkeypatch.setattr(os, name, refused)
    assert cache.load(KEY) is None
    cache.store(KEY, RECORD, HLO)
    assert cache.load(KEY) is None


def test_what_a_process_left_half_made_is_swept_later(cache):
    cache.store(KEY, RECORD, HLO)
    for name in (".new-1", ".old-1"):
        (cache.root / "entries" / name).mkdir()
        (cache.root / "entries" / name / "file").write_text("x")
    cache.prune()
    assert (cache.root / "entries" / ".new-1").is_dir()  # somebody may be at it
    for name in (".new-1", ".old-1"):
        os.utime(cache.root / "entries" / name, (1, 1))
    cache.prune()
    assert [p.name for p in (cache.root / "entries").iterdir()] == [KEY]
