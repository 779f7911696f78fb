"""What requests hold, and when they come in the steady state: at random, at one rate.

Gaps are exponential, and each part of a load takes its requests over the rate, as
`vllm bench serve` scales its arrivals. Everything that is drawn depends on the seed and not on the
rate, so that two rates are compared under the same luck.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.scheduling import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What requests hold: prompts and answers, tokens of each, of which a request has one pair at
    random. All prompts begin with the same `prefix` tokens."""

    prompts: Sequence[int]
    outputs: Sequence[int]
    prefix: int = 0

    @property
    def prompt(self) -> float:
        """Mean tokens of a prompt."""
        return float(np.mean(self.prompts))

    @property
    def fresh(self) -> float:
        """Those of them that are no prefix."""
        return self.prompt - self.prefix

    @property
    def output(self) -> float:
        """Mean tokens of an answer."""
        return float(np.mean(self.outputs))

    def drawn(
        self, rate: float, parts: Sequence[int], seed: int
    ) -> Iterator[tuple[float, int, int]]:
        """Arrival in seconds, prompt and answer of each request, in parts of a load one after the
        other, each as long as its requests over the rate."""
        moment = 0.0
        for part, count in enumerate(parts):
            draw = np.random.default_rng((seed, part))
            gaps, picks = draw.exponential(size=count), draw.integers(len(self.prompts), size=count)
            arrivals = moment + np.cumsum(gaps) * (count / rate / max(float(gaps.sum()), 1e-9))
            for arrival, pick in zip(arrivals.tolist(), picks.tolist(), strict=True):
                yield arrival, self.prompts[pick], self.outputs[pick]
            moment += count / rate

    def requests(
        self, rate: float, parts: Sequence[int], seed: int, page_size: int = 1
    ) -> Iterator[Request]:
        """The same as requests of a scheduler, with keys of the pages that the prefix fills."""
        keys = prefix_keys(self.prefix, page_size)
        for number, (arrival, prompt, output) in enumerate(self.drawn(rate, parts, seed)):
            yield Request(id=number, arrival=arrival, prompt=prompt, output=output, keys=keys)


def prefix_keys(prefix: int, page_size: int) -> tuple[tuple[str, int], ...]:
    """Keys of the pages that a prefix of all requests fills."""
    return tuple(("prefix", page) for page in range(prefix // page_size))


def demand_of(requests: Sequence[Request]) -> Demand:
    """The lengths of a trace's requests; when they came and what they share is left out."""
    return Demand(
        prompts=tuple(r.prompt for r in requests), outputs=tuple(r.output for r in requests)
    )
