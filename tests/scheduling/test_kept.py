"""Groups of layers that keep only the end of a sequence, by hand; pages of 4 tokens."""

from random import Random

import pytest
from tests.scheduling.drive import config, conserved, drive, request

from shardwise.errors import BadRequest
from shardwise.models import load_model
from shardwise.models.kv import CacheGroup, cache_groups
from shardwise.scheduling.kept import KeptGroup, least_pages

WINDOW = KeptGroup(reach=2, pages=40)
STATE = KeptGroup(reach=1, pages=40, state=True)


def keys(count, first=0):
    return tuple(range(first, first + count))


def test_a_window_of_w_tokens_reaches_over_the_pages_that_its_last_token_may_need():
    # The first token of a page sees W - 1 before it: 0, 4, and with 5 one of a page further back.
    reaches = [CacheGroup((0,), window=w).reach(4) for w in (1, 2, 5, 6, 1024)]
    assert reaches == [0, 1, 1, 2, 256]


def test_layers_are_grouped_by_what_they_keep_of_the_longest_sequence():
    gemma = load_model("gemma-3-12b")
    windows = [g.window for g in cache_groups(gemma, 4096)]
    assert windows == [None, 1024]
    assert [g.window for g in cache_groups(gemma, 512)] == [None]
    assert cache_groups(gemma, 512)[0].layers == tuple(range(len(gemma.groups)))
    hybrid = cache_groups(load_model("lfm2-1.2b"), 4096)
    assert [g.state for g in hybrid] == [False, True]


def held_over(group, **changes):
    """Places of the group's pages that one sequence holds after each step, 30 tokens in all."""
    setting = config(kept=(group,), **changes)
    held = []

    def look(job):
        held.append(sorted(job.kept[0]))
        return 0

    driven = drive(setting, [request(1, 18, 12)], accept=look)
    assert driven.jobs[0].finished
    return held


def test_pages_behind_the_window_are_given_up_as_the_sequence_moves_on():
    # Chunks of 8, 8 and 2 tokens; 18 are cached when it first decodes, in page 4.
    assert held_over(WINDOW)[0] == [2, 3, 4]
    # Its last token but one is at 28, in page 7; when it got that, a step could be in page 6.
    assert held_over(WINDOW)[-1] == [4, 5, 6, 7]


def test_of_a_state_there_are_the_page_that_is_written_and_the_last_whole_ones():
    held = held_over(STATE)
    assert held[0] == [3, 4]
    assert held[-1] == [5, 6, 7]


def test_chunks_end_where_a_state_is_kept_so_that_it_is_found():
    setting = config(kept=(STATE,))
    first, same = request(1, 18, 1, keys=keys(4)), request(2, 19, 1, 9, keys=keys(4))
    driven = drive(setting, [first, same])
    assert [[c.tokens for c in plan.chunks] for plan in driven.plans] == [[8], [8], [2], [3]]
    assert driven.jobs[1].hit == 16


def test_a_prefix_is_found_where_the_window_before_its_end_is_kept():
    """The second leaves the first after 3 pages; both pages before that are still there."""
    long = request(1, 34, 1, keys=keys(8))
    other = request(2, 18, 1, 9, keys=(0, 1, 2, 90))
    driven = drive(config(kept=(WINDOW,)), [long, other])
    assert driven.jobs[1].hit == 12
    tight = KeptGroup(reach=2, pages=least_pages(2, 1, 8, 4))
    longer = request(1, 46, 1, keys=keys(11))
    driven = drive(config(kept=(tight,), batch=1), [longer, other])
    assert driven.jobs[1].hit == 0  # nine pages: those of its beginning had to go


def test_tokens_add_up_whatever_is_kept():
    draw = Random(3)
    requests = [
        request(
            i, draw.randint(1, 40), draw.randint(1, 20), i // 3, keys=keys(9, draw.choice([0, 50]))
        )
        for i in range(40)
    ]
    requests = [
        request(r.id, r.prompt, r.output, r.arrival, keys=r.keys[: r.prompt // 4]) for r in requests
    ]
    for policy in ("chunked", "interleaved", "prefill"):
        driven = drive(config(pages=30, kept=(WINDOW, STATE), policy=policy), requests)
        assert len(driven.jobs) == 40
        if policy != "prefill":
            assert all(conserved(job) for job in driven.jobs)


def test_a_pool_that_may_run_out_is_refused():
    with pytest.raises(BadRequest) as error:
        config(kept=(KeptGroup(reach=2, pages=20),))
    assert "4 sequences and chunks of 8 tokens need 27" in str(error.value)
    with pytest.raises(BadRequest, match="static batches give up no pages"):
        config(kept=(WINDOW,), policy="static")
