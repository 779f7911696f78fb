"""The forecast peak against stepping every sequence to its end."""

from hypothesis import given
from hypothesis import strategies as st

from shardwise.scheduling.forecast import pages_for, peak_pages

GROWING = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=12)


@given(GROWING, st.integers(1, 16), st.integers(0, 5))
def test_never_too_few_and_at_most_one_page_a_sequence_too_many(growing, size, fixed):
    last = max(left for _, left in growing)
    exact = fixed + max(
        sum(pages_for(cached + step, size) for cached, left in growing if step <= left)
        for step in range(1, last + 1)
    )
    assert exact <= peak_pages(growing, size, fixed) <= exact + len(growing)


def test_ends_at_different_times_need_less_than_all_at_once():
    growing = [(100, 10), (100, 100), (100, 400)]
    # 3 x 110 or 2 x 200 or 1 x 500 tokens, in pages of one.
    assert peak_pages(growing, 1) == 500
    assert peak_pages([], 1, fixed=7) == 7
