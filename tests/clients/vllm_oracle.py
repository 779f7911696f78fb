"""vLLM on the same checkpoint, both in float32: the same greedy tokens, the same likeliest ones."""

import json
import os
import random
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

from environments import VLLM, free_port
from tests.clients.served import served

NEEDS = VLLM
PROMPTS, TOKENS, TOP = 200, 12, 5
CLOSE = 1e-3
"""How far a log-probability may lie from the other's."""


def run(url: str, folder: Path, programs: Path) -> dict:
    """The record's figures: equal answers, and the greatest distance of two logprobs.

    Where two tokens are likelier by less than `CLOSE` than each other, either may come first: an
    answer that parts there counts as a tie, and is compared up to it.
    """
    around = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    around |= {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    words = ("--dtype", "float32", "--max-model-len", "1024", "--served-model-name", folder.name)
    command = [str(programs / "vllm"), "serve", str(folder), *words]
    draw = random.Random(7)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    prompts = [
        [draw.randrange(2, vocabulary) for _ in range(draw.choice((1, 7, 30, 100, 300)))]
        for _ in range(PROMPTS)
    ]
    with tempfile.TemporaryDirectory() as passing:
        log = Path(passing) / "vllm.log"
        with (
            served(command, free_port(), log, env=around, cwd=passing) as theirs,
            ThreadPoolExecutor(8) as pool,
        ):
            mine = pool.map(lambda p: answer(url, folder.name, p), prompts)
            right = pool.map(lambda p: answer(theirs, folder.name, p), prompts)
            pairs = list(zip(mine, right, strict=True))
    return {"version": NEEDS[0].partition("==")[2], **compared(pairs)}


def answer(url: str, model: str, prompt: list[int]) -> dict:
    """A greedy answer's tokens and logprobs."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": TOP,
        "return_tokens_as_token_ids": True,
    }
    data = json.dumps(body).encode()
    request = Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})
    with urlopen(request, timeout=300) as found:
        return json.load(found)["choices"][0]["logprobs"]


def compared(pairs: list[tuple[dict, dict]]) -> dict:
    """How many answers are equal, how many part at a tie, and the greatest distance."""
    equal = ties = places = 0
    farthest = 0.0
    for mine, right in pairs:
        for i in range(TOKENS):
            farthest = max(farthest, _distance(mine, right, i))
            places += 1
            if mine["tokens"][i] != right["tokens"][i]:
                first, second, *_ = sorted(right["top_logprobs"][i].values())[::-1]
                assert first - second < CLOSE, (i, mine["tokens"], right["tokens"])
                ties += 1
                break
        else:
            equal += 1
    assert farthest < CLOSE, farthest
    return {
        "prompts": len(pairs),
        "equal": equal,
        "ties": ties,
        "places": places,
        "farthest_logprob": farthest,
    }


def _distance(mine: dict, right: dict, i: int) -> float:
    """The greatest distance of two logprobs at one place: of tokens that both name, and of the
    likeliest by rank, as either may name another one where the last two are near a tie."""
    a, b = mine["top_logprobs"][i], right["top_logprobs"][i]
    ranks = zip(*(sorted(d.values())[::-1][:TOP] for d in (a, b)), strict=True)
    pairs = [*ranks, *((a[token], b[token]) for token in a.keys() & b.keys())]
    assert len(pairs) >= 2 * TOP - 1
    return max(abs(x - y) for x, y in pairs)
