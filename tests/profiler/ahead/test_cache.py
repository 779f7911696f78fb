"""The cache keeps whole entries, finds them by content, and stays within its limit."""

import os
import random

import pytest

from shardwise.profiler.ahead.cache import Cache, default_root, key_of


@pytest.fixture
def cache(tmp_path):
    return Cache(root=tmp_path / "compiled", limit=100_000)


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
    cache = Cache(root=tmp_path / "file" / "compiled")
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
