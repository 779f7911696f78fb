"""A replica under Poisson arrivals in closed form: percentiles of TTFT, TPOT and E2E.

n sequences of I prompt and O answer tokens decode at the mean. Then, by Little, requests come at
lambda = n / (O T), where T is the mean step: D for decoding, and the chunks of the prompts that
arrive meanwhile. A prompt adds delta = c (M - D) / k in all: c chunks, M a step with those of k
prompts: itself and the n / O that come in a step besides (what an arrival sees), as far as it has
room.

    T      = D + n delta / O                    mean time per output token
    TPOT_p = T + z T' sqrt(a n / (1 - e))       e = n T' / T, a = 1 - (1 - e) / 3
    TTFT_p = W_p + p T + max(1, c) D + delta    waiting, the step under way, the own chunks
    E2E_p  = TTFT_p + (O - 1) TPOT_p            both at their percentile: from above

z is the normal quantile of p. The number in flight varies by n / (1 - e): as M/G/infinity (Poisson)
where steps take the same however many decode, and more where a longer step keeps more in flight
(the birth-death process made linear, e the elasticity). Averaged over one's own stay of fixed
length, that variance is 2/3 of it where e is 0, all of it where swings outlast the stay. A batch
has room for ten times rarer numbers than p. W_p is the tail of M/D/s as an exponential, with the
chance that all s servers are busy as Sakasegawa has it (1977; exact for s = 1):

    W_p = S / (2 s (1 - rho)) ln(rho^(sqrt(2 (s + 1)) - 1) / (1 - p))

Of a replica that also decodes, s is 1, S a prompt's share of a step full of prompts and rho =
lambda S. Disaggregated, decode steps carry no chunks (T = D), s prefill servers answer the prompts
one by one (S = P, TTFT = W_p + P), and the handed-over cache comes before the second token.
Of prompts that begin alike I counts the rest, and the cache holds the beginning once.
Everything broadcasts. Preemption and uneven lengths are left to the simulation.
"""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from shardwise.scheduling.step import StepShape
from shardwise.work import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """A replica with `running` sequences decoding at the mean, in steps of at most `chunk` tokens;
    numbers or arrays over candidates. `percentile` is a share, such as 0.9; `swing` is 1 / (1 - e),
    known once steps are priced. All prompts begin with the same `prefix` tokens, cached once.
    A step checks `queries` tokens of a sequence and yields `yields` of them; making the guesses
    takes `guessing` times a step that only decodes."""

    running: Quantity
    input_length: int
    output_length: int
    chunk: Quantity
    percentile: float
    swing: Quantity = 1.0
    prefix: int = 0
    queries: int = 1
    yields: float = 1.0
    guessing: float = 0.0

    @property
    def steps(self) -> float:
        """Steps of an answer."""
        return self.output_length / self.yields

    @property
    def z(self) -> float:
        """Normal quantile of the percentile."""
        return NormalDist().inv_cdf(self.percentile)

    @property
    def _rare(self) -> float:
        """The quantile that is exceeded ten times more rarely."""
        return NormalDist().inv_cdf(1 - (1 - self.percentile) / 10)

    @property
    def slots(self) -> Quantity:
        """Sequences that the batch must have room for."""
        return np.ceil(self.running + self._rare * np.sqrt(self.running * self.swing))

    @property
    def context(self) -> float:
        """Mean tokens cached of a running sequence."""
        return self.input_length + self.output_length / 2

    @property
    def fresh(self) -> int:
        """Tokens of a prompt that are computed."""
        return self.input_length - self.prefix

    @property
    def cached(self) -> Quantity:
        """Tokens that the cache must hold: contexts are spread evenly over the answer."""
        own = self.context - self.prefix
        spread = own**2 + self.output_length**2 / 12
        return (
            self.prefix
            + self.running * own
            + self._rare * np.sqrt(self.running * spread * self.swing)
        )

    @property
    def room(self) -> Quantity:
        """Prompt tokens that fit into a step beside the decodes."""
        return np.maximum(self.chunk - self.running * self.queries, 0.0)

    @property
    def chunks(self) -> Quantity:
        """c: steps of a prompt, 1 or more; infinite where decodes fill the step."""
        with np.errstate(divide="ignore"):
            return np.maximum(self.fresh / self.room, 1.0)

    @property
    def together(self) -> Quantity:
        """k: prompts in the step of a prompt."""
        most = np.maximum(self.room / self.fresh, 1.0)
        return np.minimum(1 + self.running / self.steps, most)

    def decode_step(self, *, more: bool = False) -> StepShape:
        """The sequences that decode, at the mean or one deviation more of them; one at least, as a
        step without any is none."""
        n = np.maximum(self.running, 1.0) + np.sqrt(self.running) * more
        checked = n * self.queries
        return StepShape(
            decodes=n,  # type: ignore[arg-type]
            decode_tokens=checked,  # type: ignore[arg-type]
            decode_context=n * self.context,  # type: ignore[arg-type]
            samples=checked,  # type: ignore[arg-type]
        )

    def mixed_step(self) -> StepShape:
        """The mean decode step with mean chunks of `together` prompts in it."""
        step, chunks, prompts = self.decode_step(), self.chunks, self.together
        chunk = {k: prompts * v for k, v in self._chunk(chunks).items()}
        return step._replace(**chunk, samples=step.samples + prompts / chunks)  # type: ignore[arg-type]

    def prompt_step(self) -> StepShape:
        """One chunk of a prompt on a server that only prefills."""
        chunks = np.maximum(self.fresh / np.asarray(self.chunk, float), 1.0)
        return StepShape(**self._chunk(chunks), samples=1)

    def _chunk(self, chunks: Quantity) -> dict[str, Any]:
        """The mean of so many chunks of a prompt: the prefix and half of the prompt's other tokens
        come before it."""
        tokens = self.fresh / np.asarray(chunks, float)
        return {
            "prefills": 1 + 0 * tokens,
            "prefill_tokens": tokens,
            "prefill_context": (self.fresh - tokens) / 2 + self.prefix,
            "prefill_pairs": tokens * (self.fresh / 2 + self.prefix),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTimes:
    """What a replica does under its load: requests per second, seconds at the percentile, the share
    of the time that prompts take, and `Steady.swing`."""

    rate: Quantity
    ttft: Quantity
    tpot: Quantity
    prompt_share: Quantity
    swing: Quantity
    output_length: int

    @property
    def e2e(self) -> Quantity:
        """From arrival to the last token."""
        return self.ttft + (self.output_length - 1) * self.tpot


def mixed_times(load: Steady, decode: Quantity, slope: Quantity, mixed: Quantity) -> LoadTimes:
    """Prompts and answers on one replica, from the seconds of `decode_step()` and `mixed_step()`;
    `slope` is what one more sequence adds to a decode step. TTFT is infinite where prompts come
    faster than they are answered."""
    chunks, prompts = load.chunks, load.running / load.steps
    with np.errstate(divide="ignore", invalid="ignore"):  # where decodes leave no room
        added = chunks * np.maximum(mixed - decode, 0.0) / load.together
        step = decode + prompts * added
        rate = prompts / step
        served = decode * load.fresh / load.room + added
        wait = waiting(served, rate * served, load.percentile)
        ttft = wait + load.percentile * step + chunks * decode + added
        share = prompts * added / step
        tpot, swing = slow_step(load, step, slope + added / load.steps)
    return LoadTimes(
        rate=rate,
        ttft=np.where(np.isnan(ttft), np.inf, ttft),
        tpot=np.where(np.isnan(tpot), np.inf, tpot / load.yields),
        prompt_share=share,
        swing=swing,
        output_length=load.output_length,
    )


_MOST_SWING = 100.0
"""The largest `swing` that `slow_step` returns."""


def slow_step(load: Steady, step: Quantity, slope: Quantity) -> tuple[Quantity, Quantity]:
    """A mean step at the percentile, and `swing`, where one more sequence adds `slope` to it. A
    request meets as many others as run in the mean, and is one more (Wolff 1982)."""
    stiff = np.clip(1 - load.running * slope / step, 1 / _MOST_SWING, 1.0)
    spread = np.sqrt((1 - stiff / 3) * load.running / stiff)
    own = np.minimum(load.running, 1.0)  # a decode step has one at least
    return step + (own + load.z * spread) * slope, 1 / stiff


def waiting(
    served: Quantity, busy: Quantity, percentile: float, servers: Quantity = 1.0
) -> Quantity:
    """W_p before `servers` of `served` seconds each that are `busy` a share of the time; infinite
    where they always are."""
    busy = np.asarray(busy, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        all_busy = busy ** (np.sqrt(2 * (servers + 1)) - 1)
        tail = np.maximum(np.log(all_busy / (1 - percentile)), 0.0)
        wait = np.where(tail > 0, served * tail / (2 * servers * (1 - busy)), 0.0)
    return np.where(busy < 1, wait, np.inf)


_BUSY = np.linspace(0.01, 0.99, 99)


def most_busy(
    served: Quantity, target: Quantity, percentile: float, servers: Quantity = 1.0
) -> Quantity:
    """The largest share of the time, in hundredths, that prefill servers may be busy so that their
    prompts' TTFT is within the target; 0 where none is."""
    served, servers = np.asarray(served, float)[..., None], np.asarray(servers, float)[..., None]
    ttft = waiting(served, _BUSY, percentile, servers) + served
    return np.max(np.where(ttft <= target, _BUSY, 0.0), axis=-1)
