"""Benchmarks of vLLM and SGLang as loads, with what was measured of each request."""

import json
from math import isnan

import numpy as np
import pytest

from shardwise.errors import BadRequest
from shardwise.planner.simulate.replays import read_replay

RUN = {
    "request_rate": "inf",
    "max_concurrency": 2,
    "input_lens": [100, 200, 300, 50],
    "output_lens": [3, 1, 2, 0],
    "ttfts": [0.1, 0.2, 0.3, 0.0],
    "itls": [[0.05, 0.07], [], [0.1], []],
    "errors": ["", "", "", "refused"],
}


def read(tmp_path, text):
    path = tmp_path / "run.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return read_replay(path)


@pytest.mark.parametrize("indent", [None, 2])
def test_a_run_of_vllm_says_when_each_request_started(tmp_path, indent):
    found = read(tmp_path, json.dumps(RUN | {"start_times": [10.0, 11.5, 10.5, 12]}, indent=indent))
    assert (list(found.prompts), list(found.outputs), found.failed) == (
        [100, 200, 300],
        [3, 1, 2],
        1,
    )
    assert found.starts.tolist() == [0.0, 1.5, 0.5]
    assert found.e2el == pytest.approx([0.22, 0.2, 0.4])
    assert found.tpot[[0, 2]] == pytest.approx([0.06, 0.1])
    assert isnan(found.tpot[1])
    asked = found.requests(page_size=64, prefix=130)
    assert (asked[0].arrival, asked[0].prompt, len(asked[0].keys)) == (0.0, 100, 2)


def test_a_closed_loop_of_sglang_starts_where_a_place_is_free(tmp_path):
    """Two at once: the third starts as the shorter of the first two ends, after 0.2 s."""
    found = read(tmp_path, json.dumps(RUN) + "\n")
    assert found.starts == pytest.approx([0, 0, 0.2])
    assert not found.drawn


def test_an_open_loop_without_times_is_drawn_at_its_rate(tmp_path):
    found = read(tmp_path, RUN | {"request_rate": 4.0})
    assert found.drawn
    assert np.all(np.diff(found.starts) > 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"ttfts": [0.1]},
            "must have a value for each request each: input_lens 4, output_lens 4, tt",
        ),
        ({"itls": [1, [], [0.1], []]}, "request 1: itls is 1; it is a list of seconds"),
        ({"ttfts": [-1, 0.2, 0.3, 0]}, "request 1: ttfts is -1"),
        ({"errors": ["x"] * 4}, "no request that was answered"),
    ],
)
def test_a_run_that_is_none_says_where(tmp_path, change, said):
    with pytest.raises(BadRequest, match=said):
        read(tmp_path, RUN | change)


def test_a_file_without_requests_says_how_to_make_one(tmp_path):
    with pytest.raises(BadRequest, match=r"no run with input_lens.*--save-result --save-detailed"):
        read(tmp_path, {"request_rate": 1.0})
    with pytest.raises(BadRequest, match="2 runs with"):
        read(tmp_path, json.dumps(RUN) + "\n" + json.dumps(RUN))
