"""The prefix tree against a cache of single pages that is searched from end to end every time."""

from random import Random

from hypothesis import strategies as st
from tests.drawn import on_drawn

from shardwise.scheduling import PagePool, PrefixTree


def actions(draw):
    """Sixty starts, insertions, ends and evictions of prompts that share beginnings."""
    for _ in range(60):
        kind = draw.choices(["start", "insert", "finish", "evict"], [4, 3, 3, 1])[0]
        keys = tuple(draw.randrange(3) for _ in range(draw.randint(1, 6)))
        yield kind, keys, draw.randint(0, len(keys)), draw.randrange(6)


class Oracle:
    """Every cached page by itself, named by all the keys up to it; LRU by looking at all of them.

    A page is evicted when nobody uses it and none that builds on it is there; among those, the one
    used longest ago.
    """

    def __init__(self, host_pages):
        self.host_pages = host_pages
        self.device: dict[tuple, int] = {}
        self.host: dict[tuple, int] = {}
        self.used: list[tuple] = []  # the path of each user
        self.tick = 0

    def match(self, keys, most):
        length = 0
        while length < most and (
            keys[: length + 1] in self.device or keys[: length + 1] in self.host
        ):
            length += 1
        return length

    def touch(self, path):
        self.tick += 1
        for end in range(1, len(path) + 1):
            place = self.device if path[:end] in self.device else self.host
            place[path[:end]] = self.tick

    def start(self, path):
        for end in range(1, len(path) + 1):
            if path[:end] in self.host:
                self.device[path[:end]] = self.host.pop(path[:end])
        self.touch(path)
        self.used.append(path)

    def insert(self, old, new):
        for end in range(1, len(new) + 1):
            self.host.pop(new[:end], None)
            self.device[new[:end]] = 0
        self.touch(new)
        self.used[self.used.index(old)] = new

    def finish(self, path):
        self.touch(path)
        self.used.remove(path)

    def locked(self, path):
        return any(user[: len(path)] == path for user in self.used)

    def oldest(self, place, others):
        free = [
            p
            for p in place
            if not self.locked(p) and not any(q[:-1] == p for q in (*place, *others))
        ]
        return min(free, key=lambda p: place[p], default=None)

    def evict_one(self):
        path = self.oldest(self.device, ())
        tick = self.device.pop(path)
        while self.host_pages and len(self.host) >= self.host_pages:
            last = self.oldest(self.host, self.device)
            if last is None:
                break
            del self.host[last]
        if len(self.host) < self.host_pages:
            self.host[path] = tick
        else:
            for p in [p for p in self.host if p[: len(path)] == path]:
                del self.host[p]


def paths(tree):
    """Every page of a tree named by all the keys up to it: on the device, on the host."""
    device, host = set(), set()
    stack = [(child, ()) for child in tree.root.children.values()]
    while stack:
        node, above = stack.pop()
        for end in range(1, len(node.keys) + 1):
            (host if node.pages is None else device).add(above + node.keys[:end])
        stack += [(child, above + node.keys) for child in node.children.values()]
    return device, host


@on_drawn(300, st.integers(0, 2**32), st.integers(6, 16), st.sampled_from([0, 0, 3, 8]))
def test_hits_and_evictions_are_those_of_a_naive_cache(seed, size, host_pages):
    pool = PagePool(size)
    tree, oracle = PrefixTree(pool, host_pages), Oracle(host_pages)
    users = []  # node, keys, path used, own pages
    for action, keys, most, which in actions(Random(seed)):
        if action == "start":
            found, hit = tree.peek(keys, most), oracle.match(keys, most)
            assert found.device + found.host == hit
            need = len(keys) - found.device
            if need > pool.free + tree.unlocked - found.unlocked:
                continue
            node = tree.lock(keys, most)
            oracle_path = keys[:hit]
            oracle.used.append(oracle_path)
            oracle.touch(oracle_path)
            short = max(0, need - pool.free)
            tree.evict(short)
            for _ in range(short):
                oracle.evict_one()
            oracle.used.remove(oracle_path)
            oracle.tick -= 1
            tree.load(node)
            oracle.start(oracle_path)
            users.append([node, keys, oracle_path, pool.take(len(keys) - hit)])
        elif action == "insert" and users:
            user = users[which % len(users)]
            node, keys, path, own = user
            if own:
                before = tree.pages_of(node)
                user[0], used = tree.insert(node, keys[len(path) :], own)
                assert tree.pages_of(user[0]) == before + used
                user[2], user[3] = keys, []
                oracle.insert(path, keys)
        elif action == "finish" and users:
            node, _, path, own = users.pop(which % len(users))
            tree.release(node)
            pool.release(own)
            oracle.finish(path)
        elif action == "evict":
            count = min(which, tree.unlocked)
            tree.evict(count)
            for _ in range(count):
                oracle.evict_one()
        pool.check(tree.check() + [user[3] for user in users])
        assert paths(tree) == (set(oracle.device), set(oracle.host))
        assert tree.unlocked == sum(not oracle.locked(p) for p in oracle.device)


def cached(tree, pool, keys):
    """Put a prompt into the tree as a request that ran would."""
    most = len(keys)
    node = tree.lock(keys, most)
    known = len(tree.pages_of(node))
    if most - known > pool.free:
        tree.evict(most - known - pool.free)
    node, _ = tree.insert(node, keys[known:], pool.take(most - known))
    tree.release(node)


def test_the_least_recently_used_goes_first():
    pool = PagePool(6)
    tree = PrefixTree(pool)
    for keys in ((1, 2), (3, 4), (5, 6)):
        cached(tree, pool, keys)
    cached(tree, pool, (1, 2))  # used again
    tree.evict(3)
    assert paths(tree)[0] == {(1,), (1, 2), (5,)}


def test_evicted_pages_come_back_from_the_host():
    pool = PagePool(4)
    tree = PrefixTree(pool, host_pages=2)
    cached(tree, pool, (1, 2, 3))
    tree.evict(2)
    assert tree.peek((1, 2, 3), 3) == (1, 2, 1)
    node = tree.lock((1, 2, 3), 3)
    assert tree.missing(node) == 2
    assert tree.load(node) == 2
    assert len(tree.pages_of(node)) == 3
    assert (tree.device, tree.hosted) == (3, 0)


def test_eviction_does_not_search_the_tree():
    """Ten times the tree costs about as many heap entries per eviction, not ten times as many."""

    def looked_at(prompts):
        pool = PagePool(prompts)
        tree = PrefixTree(pool)
        for i in range(prompts):
            cached(tree, pool, (i,))
        before = len(tree._leaves)
        for _ in range(prompts // 2):
            tree.evict(1)
        return (before - len(tree._leaves)) / (prompts // 2)

    assert looked_at(1000) == looked_at(100) == 1
