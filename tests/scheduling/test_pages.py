"""The page pool against a brute-force oracle: none leaked, freed twice, or shared when written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadRequest
from shardwise.scheduling import PagePool

OPS = st.lists(st.tuples(st.sampled_from("nfwd"), st.integers(0, 7)), max_size=60)


@given(OPS, st.integers(1, 12))
def test_forks_share_until_one_writes(ops, size):
    """Tables of pages are made, forked, written and dropped. What a table reads is what was written
    through it or through the table that it was forked from before, never through another."""
    pool = PagePool(size)
    tables: list[list[int]] = []  # page numbers
    contents: dict[int, int] = {}  # what lies in a page
    expected: list[list[int]] = []  # what each table must read
    stamp = 0
    for op, which in ops:
        at = which % len(tables) if tables else 0
        if op == "n" and pool.free:
            (page,) = pool.take(1)
            stamp += 1
            contents[page] = stamp
            tables.append([page])
            expected.append([stamp])
        elif op == "f" and tables:
            pool.share(tables[at])
            tables.append(list(tables[at]))
            expected.append(list(expected[at]))
        elif op == "w" and tables and (pool.free or pool.references(tables[at][0]) == 1):
            shared = pool.references(tables[at][0]) > 1
            page = tables[at][0]
            if shared:
                (page,) = pool.take(1)
                pool.release(tables[at])
            assert pool.references(page) == 1
            stamp += 1
            tables[at][0], contents[page], expected[at][0] = page, stamp, stamp
        elif op == "d" and tables:
            pool.release(tables.pop(at))
            expected.pop(at)
        pool.check(tables)
        assert [[contents[p] for p in table] for table in tables] == expected
    for table in tables:
        pool.release(table)
    assert pool.free == size


def test_misuse_is_our_own_mistake():
    pool = PagePool(3)
    pages = pool.take(2)
    assert pool.take(0) == []
    with pytest.raises(AssertionError, match="2 pages wanted, 1 free"):
        pool.take(2)
    pool.release(pages)
    with pytest.raises(AssertionError, match="released while free"):
        pool.release(pages)
    with pytest.raises(AssertionError, match="shared while free"):
        pool.share(pages)


def test_check_finds_a_leak_and_a_lost_reference():
    pool = PagePool(3)
    pages = pool.take(2)
    with pytest.raises(AssertionError):
        pool.check([pages[:1]])
    with pytest.raises(AssertionError):
        pool.check([pages, pages[:1]])
    pool.check([pages])


def test_an_empty_pool_is_refused():
    with pytest.raises(BadRequest, match="a page pool of 0 pages holds nothing"):
        PagePool(0)
