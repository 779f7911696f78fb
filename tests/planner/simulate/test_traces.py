"""Traces: every format read, keys of pages, made loads with the rates that were asked for."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadRequest
from shardwise.planner.simulate.traces import (
    from_quantiles,
    from_rates,
    page_keys,
    poisson,
    rates_of,
    read_quantiles,
    read_trace,
    scaled,
    tiled,
    with_lengths,
)

# First lines of each trace. Azure: AzureLLMInferenceTrace_conv.csv, CC-BY 4.0, cite Splitwise,
# ISCA'24; Mooncake: FAST25-release, Apache-2.0; LLMServingSim's form, values ours; ServeGen,
# Apache-2.0.
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
VIDUR = """arrived_at,num_prefill_tokens,num_decode_tokens
0.0,374,44
4.314579,396,109
4.541877,879,55
"""
MOONCAKE = (
    '{"timestamp": 0, "input_length": 6758, "output_length": 500, '
    '"hash_ids": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]}\n'
    '{"timestamp": 3000, "input_length": 7322, "output_length": 490, '
    '"hash_ids": [0, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27]}\n'
)
RATES = "window_start_s,requests_per_s\n0,14.86333\n600,18.40333\n1200,20.05333\n"


@pytest.fixture
def saved(tmp_path):
    def save(text, name="trace"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return save


def told(requests):
    return [(round(r.arrival, 6), r.prompt, r.output) for r in requests]


def test_azure_and_vidur_say_the_same(saved):
    azure = told(read_trace(saved(AZURE), 16))
    assert azure == [(0.0, 374, 44), (4.314579, 396, 109), (4.541877, 879, 55)]
    assert told(read_trace(saved(VIDUR), 16)) == azure
    assert told(read_trace(saved(AZURE), 16, most=2)) == azure[:2]


def test_alibabas_rows_have_seconds_and_small_blocks(saved):
    """The keys of Mooncake's; the count of blocks tells them apart."""
    rows = [
        {"timestamp": 61.1, "input_length": 10, "output_length": 2, "hash_ids": [7]},
        {"timestamp": 61.3, "input_length": 33, "output_length": 5, "hash_ids": [1, 2, 3]},
    ]
    first, second = read_trace(saved("\n".join(map(json.dumps, rows))), 16)
    assert (first.arrival, second.arrival) == (0.0, pytest.approx(0.2))
    assert second.keys == (1, 2)


def test_blocks_of_no_known_size_are_refused(saved):
    row = {"timestamp": 1, "input_length": 6758, "output_length": 5, "hash_ids": [1, 2, 3]}
    with pytest.raises(BadRequest, match="3 hash_ids for 6,758 tokens are blocks of neither 512"):
        read_trace(saved(MOONCAKE + json.dumps(row)), 16)
    named = row | {"block_size": 4096}
    assert read_trace(saved(json.dumps(named)), 4096)[0].keys == (1,)


def test_mooncake_blocks_become_pages(saved):
    first, second = read_trace(saved(MOONCAKE), 256)
    assert (second.arrival, second.prompt, second.output) == (3.0, 7322, 490)
    assert len(first.keys) == 6758 // 256
    assert first.keys[:3] == (0, 1, 2)
    assert second.keys[:2] == first.keys[:2]  # block 0 is shared
    assert not set(second.keys[2:]) & set(first.keys)


def test_blocks_of_sixteen_are_joined_to_pages(saved):
    row = {"timestamp": 46.9, "input_length": 70, "output_length": 5, "hash_ids_16": [3, 4, 5, 6]}
    (request,) = read_trace(saved(json.dumps(row)), 32)
    assert request.keys == ((3, 4), (5, 6))
    assert request.arrival == 0
    later = {**row, "timestamp": 346.9}
    _, second = read_trace(saved(json.dumps(row) + "\n" + json.dumps(later)), 32)
    assert second.arrival == pytest.approx(0.3)  # 300 requests of such a file are 30 s at 10 per s


def test_a_trace_of_ones_own(saved):
    row = {"arrival": 2, "prompt": 100, "output": 7, "priority": 1, "deadline": 0.5}
    row |= {"session": "anna", "hash_ids": [9, 8], "block_size": 64}
    first, second = read_trace(
        saved('{"arrival": 1, "prompt": 5, "output": 1}\n' + json.dumps(row)), 32
    )
    assert (first.arrival, first.deadline, first.keys) == (0, float("inf"), ())
    assert (second.arrival, second.deadline, second.session, second.priority) == (1, 1.5, "anna", 1)
    assert second.keys == (18, 19, 16)


@given(
    st.lists(st.integers(0, 3), max_size=12),
    st.sampled_from([(4, 2), (4, 4), (2, 4), (2, 8), (3, 3)]),
    st.integers(0, 6),
)
def test_equal_beginnings_have_equal_keys_and_no_others(blocks, sizes, cut):
    """Pages agree as far as the tokens that the blocks stand for do."""
    block, page = sizes
    other = [*blocks[:cut], *(b + 7 for b in blocks[cut:])]

    def tokens(ids):
        return [(b, i) for b in ids for i in range(block)]

    prompt = block * len(blocks)
    ours, theirs = (page_keys(ids, block, prompt, page) for ids in (blocks, other))
    assert len(ours) == prompt // page
    for i in range(len(ours)):
        same = tokens(blocks)[i * page : (i + 1) * page] == tokens(other)[i * page : (i + 1) * page]
        assert (ours[i] == theirs[i]) == same


def own(**changes):
    """A line in the form of one's own, values as JSON text."""
    row = {"arrival": "1", "prompt": "5", "output": "3"} | changes
    return "{" + ", ".join(f'"{k}": {v}' for k, v in row.items()) + "}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty; a trace has a request on each line"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
        ("a,b\n1,2\n", "is no trace that is known: its columns are 'a', 'b'"),
        (AZURE + "soon,1,2\n", "line 5: 'soon,1,2' is no request"),
        (MOONCAKE + "{}", "line 3 is no request: no key 'input_length'"),
        (MOONCAKE + "[1]", "line 3 is no request: it is no JSON object"),
        (MOONCAKE + "{", "line 3 is no request: it is not JSON at column 2: "),
        (
            MOONCAKE + own(arrival="NaN"),
            "line 3 is no request: it: a number is NaN; numbers must be finite",
        ),
        (MOONCAKE + own(arrival="1e400"), "line 3 is no request: it: a number is '1e400'"),
        (own(arrival="1" + 400 * "0"), "a number has 401 digits, over 40"),
        (
            own(arrival="-1"),
            "line 1 is no request: arrival is -1; it must be a number of at least 0",
        ),
        (own(arrival="true"), "line 1 is no request: arrival is True; it must be a number"),
        (own(prompt="2.5"), "line 1 is no request: prompt is 2.5; it must be a whole number"),
        (own(output='"x"'), "line 1 is no request: output is 'x'; it must be a whole number"),
        (own(deadline="NaN"), "line 1 is no request: it: a number is NaN"),
        (own(hash_ids="7"), "hash_ids must be a list of whole numbers"),
        (own(hash_ids='["a"]'), "hash_ids must be a list of whole numbers"),
        (own(block_size="0"), "block_size is 0; it must be a whole number of at least 1"),
        (VIDUR + "nan,1,2\n", "line 5: 'nan,1,2' is no request: arrived_at is 'nan'; it must be"),
        (VIDUR + "-1,1,2\n", "arrived_at is '-1'; it must be a number of at least 0"),
        (VIDUR + "9,1.5,2\n", "num_prefill_tokens is '1.5'; it must be a whole number"),
        ('{"arrival": 1, "prompt": 0, "output": 3}', "has prompt 0; it needs at least 1 token"),
    ],
)
def test_bad_files_are_refused(saved, text, said):
    with pytest.raises(BadRequest) as error:
        read_trace(saved(text), 16)
    assert said in str(error.value)


def test_pages_that_do_not_fit_the_blocks_are_refused(saved):
    with pytest.raises(BadRequest, match="pages of 48 tokens and the trace's blocks of 512"):
        read_trace(saved(MOONCAKE), 48)
    with pytest.raises(BadRequest, match="cannot read the trace"):
        read_trace(saved("").parent / "none", 16)


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_made_gaps_have_the_rate_and_spread_asked_for(cv):
    requests = poisson(4, 40_000, 10, 2, cv=cv, seed=5)
    gaps = np.diff([r.arrival for r in requests])
    assert gaps.mean() == pytest.approx(0.25, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-9)
    assert requests == poisson(4, 40_000, 10, 2, cv=cv, seed=5)
    with pytest.raises(BadRequest, match="at a rate of 0 a second"):
        poisson(0, 5, 1, 1)


def test_rates_and_quantiles_of_servegen(saved):
    windows = rates_of(saved(RATES))
    assert windows is not None
    assert rates_of(saved(AZURE)) is None
    quantiles = saved("category,field,mean,p1,p50,p99\nchat,input_tokens,9,10,100,1000\n", "q")
    lengths = from_quantiles(read_quantiles(quantiles, "chat", "input_tokens"))
    requests = from_rates(windows, lengths, lengths, seed=2)
    for start, rate in windows:
        count = sum(start <= r.arrival < start + 600 for r in requests)
        assert count == pytest.approx(600 * rate, rel=0.05)
    prompts = np.array([r.prompt for r in requests])
    assert np.percentile(prompts, 50) == pytest.approx(100, rel=0.05)
    assert prompts.min() >= 10
    assert prompts.max() <= 1000
    for row in ("nan,1", "600,inf", "0,-1", "0"):
        with pytest.raises(BadRequest, match="line 5: "):
            rates_of(saved(RATES + row))
    with pytest.raises(BadRequest, match="unknown category 'cat'; did you mean 'chat'"):
        read_quantiles(quantiles, "cat", "input_tokens")
    assert len(from_rates(windows, lengths, lengths, most=50)) == 50


def test_tiles_repeat_arrivals_but_share_no_content(saved):
    requests = read_trace(saved(MOONCAKE), 512)
    twice = tiled(requests, 2)
    assert [r.id for r in twice] == [0, 1, 2, 3]
    assert [r.arrival for r in twice] == [0, 3, 6, 9]
    assert not set(twice[0].keys) & set(twice[2].keys)
    assert [r.arrival for r in scaled(twice, 2)] == [0, 1.5, 3, 4.5]
    lengths = from_quantiles({0.0: 7, 1.0: 7})
    assert {r.prompt for r in with_lengths(twice, lengths, lengths)} == {7}
