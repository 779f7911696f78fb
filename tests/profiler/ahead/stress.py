"""One of several processes that use, fill, prune and damage one compile cache.

`python stress.py ROOT SEED OPERATIONS` prints JSON: how many operations found their program, how
many stored it, how many damaged something, which results were wrong and which errors were raised.
"""

import json
import os
import random
import shutil
import sys
import traceback
from pathlib import Path

from shardwise.profiler.ahead.cache import CompileCache

KEYS = [f"key{i:02}" for i in range(12)]
LIMIT = 60_000
"""Bytes: some five of the twelve programs."""


def program(key):
    """The record and the text that belong to a key, of some 12 kB."""
    noise = random.Random(key)
    return {"fits": True, "name": key}, f"HloModule {key}\n" + noise.randbytes(11_000).hex()


def operate(cache, draw):
    """What a compile does with the cache: 'hit', 'stored', or 'wrong' if what it got is not its."""
    key = draw.choice(KEYS)
    record, text = program(key)
    followed = cache.follow(f"asked-{key}")
    if followed not in (key, None):
        return "wrong"
    found = cache.load(key) if followed or draw.random() < 0.3 else None
    if found is not None:
        return "hit" if found == (record, text) else "wrong"
    cache.store(key, record, text)
    cache.remember(f"asked-{key}", key)
    return "stored"


def damage(root, draw):
    """Do to a random file or folder of the cache what disks, people and kills do."""
    below = [p for p in [root, *root.rglob("*")] if p != root]
    if not below:
        return
    path = draw.choice(below)
    junk = draw.randbytes(draw.choice([0, 1, 300]))
    kind = draw.choice(["delete", "cut", "flip", "junk", "other kind", "swap", "rename"])
    if kind == "swap" and path.is_file():
        other = draw.choice([p for p in below if p.is_file()])
        path.write_bytes(other.read_bytes())
    elif kind == "rename":
        path.rename(draw.choice(below))
    elif kind == "cut" and path.is_file():
        os.truncate(path, path.stat().st_size // 2)
    elif kind == "flip" and path.is_file():
        data = bytearray(path.read_bytes())
        data[draw.randrange(len(data) or 1) :][:1] = b"!"
        path.write_bytes(data)
    elif kind == "junk" and path.is_file():
        path.write_bytes(junk)
    elif kind == "junk":
        (path / "more").write_bytes(junk)
    elif path.is_dir():
        shutil.rmtree(path)
        if kind == "other kind":
            path.write_bytes(junk)
    else:
        path.unlink()
        if kind == "other kind":
            (path / "in").mkdir(parents=True)


def main(root, seed, operations):
    cache, draw = CompileCache(root=Path(root), limit=LIMIT), random.Random(seed)
    said = {"hit": 0, "stored": 0, "damaged": 0, "wrong": 0, "raised": []}
    for _ in range(operations):
        if draw.random() < 0.15:
            try:
                damage(cache.root, draw)
                said["damaged"] += 1
            except (OSError, IndexError):
                pass  # another process was there first
        try:
            said[operate(cache, draw)] += 1
            if draw.random() < 0.05:
                cache.prune()
                cache.size()
        except Exception:
            said["raised"].append(traceback.format_exc())
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
