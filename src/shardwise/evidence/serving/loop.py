"""A closed loop of requests in closed form: TTFT and TPOT from the times of a few steps.

`concurrency` requests of I prompt and O answer tokens are always in flight; at most `most_running`
of them fit into the cache, n of them decode. A decode step yields y tokens a sequence (1 without
guesses) and lets n y / O requests finish, so as many prompts come in: q = n y I / O prompt tokens
per step. They come in lumps of a prompt (of q where that is more, of the token budget where that is
less), so a share f = q / lump of the steps is mixed:

    E         = f (M - D) (n - 1) / n   D a decode step, M a mixed one of n sequences and a lump
    TPOT      = (D + (1 - w) E) / y
    TTFT      = (1 - 1/v) (P + q + s S + w E (O / y - 1)) + W / v

E is what the prompts of the n - 1 others add to a step; one request at a time meets none. P is the
prefill of a prompt alone, whose kernels the host starts ahead of the device (`ahead`).

s steps of S seconds go by until software looks at a request beside others: `poll_steps`, half of
the steps that it is told to take between looks at its queue (`queue_interval`), those for which it
holds a prompt back until others are there (`held_steps`), and `balance_steps` where parts of the
batch have attention of their own, as one of them starts a prompt when the others have one too. An
idle server looks at once, and its software has nothing else to do (`beside_seconds`).

Requests of equal lengths end one step after the other, as they began, so the steps that a prompt
waits for hold prompts, too: S = D + (M - D) (n - 1) / n. Where lengths differ, requests drift
apart: of the steps without prompts a share `crowd` is met as if it had one, and a prompt waits q
seconds for those before it (`queued`). An engine moves a part w of the others' prefill from the
time between tokens to the time before the first: `equal_wait` of equal lengths, `prefill_wait` of
others.

A benchmark of v = `waves` requests for each in flight starts n at once, which are prefilled one
step after the other, each of as many prompts as the token budget holds: W seconds in the mean.
Where no request came before, this wave also waits for the first programs (`program_seconds`).
Requests beyond n queue for their turn.

Where servers of their own prefill (`pools`), decode steps hold no prompts, and the loop goes round
at the rate X that the slower pool allows. One that decodes keeps a place for each of its sequences,
from their handover on; a request waits for one before its first token is sent, so 1.5 requests in
flight for a place wait for half an answer:

    X = min(c / (P + handover + s D + O TPOT), rate of prefill,
            places / (handover + O TPOT)),  n = X O TPOT per server
    TTFT = c / X - O TPOT + pool_wait c / rate
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwise.roofline.engines import TOKEN_SECONDS, EngineConstants
from shardwise.scheduling.step import StepShape
from shardwise.work import Quantity

TOKEN_BUDGET = 8192
"""Tokens of one step: the default of vLLM (`max_num_batched_tokens`) on chips of 80 GB, of SGLang
(`chunked_prefill_size`) and of TensorRT-LLM (`max_num_tokens`)."""

MEMORY_SHARE = 0.9
"""Share of the memory that engines take: vLLM's `gpu_memory_utilization`, 0.9 by default."""

_ROUNDS = 8
"""Rounds of the fixed point of two pools, each half way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """What is in flight at one server; numbers or arrays over candidates. `yields` are the tokens
    of one step and sequence, `splits` parts of the batch that prefill prompts of their own,
    `queue_interval` the steps from one look at the queue to the next, `waves` the requests of the
    benchmark for each in flight, `held_steps` those for which a prompt is held back, `cold` whether
    no request came before the benchmark's, `kernels` those of a prompt's step."""

    concurrency: Quantity
    input_length: Quantity
    output_length: Quantity
    most_running: Quantity = np.inf
    token_budget: Quantity = TOKEN_BUDGET
    yields: Quantity = 1.0
    splits: Quantity = 1.0
    queue_interval: Quantity = 1.0
    waves: Quantity = np.inf
    held_steps: Quantity = 0.0
    cold: Quantity = 0.0
    kernels: Quantity = 0.0

    @property
    def running(self) -> Quantity:
        """n: requests that decode at once."""
        return np.maximum(np.minimum(self.concurrency, self.most_running), 1.0)

    @property
    def others(self) -> Quantity:
        """(n - 1) / n: the share of the prompts that are others' to a request."""
        return (self.running - 1) / self.running

    @property
    def busy(self) -> Quantity:
        """Whether a request meets others at its server: nobody does where one is in flight."""
        return np.clip(np.asarray(self.concurrency) - 1, 0.0, 1.0)

    @property
    def prompt_tokens(self) -> Quantity:
        """q: prompt tokens that come in per step."""
        return self.input_length * self.running * self.yields / self.output_length

    @property
    def lump(self) -> Quantity:
        """Prompt tokens of a mixed step."""
        whole = np.maximum(self.input_length, self.prompt_tokens)
        return np.minimum(whole, self.token_budget)

    @property
    def mixed_share(self) -> Quantity:
        """f: share of the steps with prompt tokens."""
        return np.minimum(self.prompt_tokens / self.lump, 1.0)

    @property
    def chunks(self) -> Quantity:
        """Steps of the prefill of one prompt."""
        return np.maximum(self.input_length / self.token_budget, 1.0)

    @property
    def full_prompts(self) -> Quantity:
        """Whole prompts that one part of the batch prefills in a step."""
        return np.maximum(np.floor(self.token_budget / self.input_length), 1.0)

    @property
    def room(self) -> Quantity:
        """Prompts that one step takes over all parts of the batch."""
        return self.full_prompts * self.splits

    def decode_step(self, queries: Quantity = 1.0) -> StepShape:
        """n sequences at the mean context, the prompt and half of the answer, of `queries` tokens
        each."""
        context = self.input_length + self.output_length / 2
        n = self.running
        return StepShape(
            decodes=n,  # type: ignore[arg-type]
            decode_tokens=n * queries,  # type: ignore[arg-type]
            decode_context=n * context,  # type: ignore[arg-type]
            samples=n * queries,  # type: ignore[arg-type]
        )

    def mixed_step(self) -> StepShape:
        """The decode step with a lump of prompts in it."""
        prompts = self.lump / self.input_length
        chunks = np.maximum(prompts, 1.0)
        step = self.decode_step()
        return step._replace(
            prefills=chunks,
            prefill_tokens=self.lump,
            # The mean chunk of a prompt stands in its middle.
            prefill_context=np.maximum(self.input_length - self.lump, 0.0) / 2,
            prefill_pairs=self.lump * self.input_length / 2,
            samples=step.samples + np.floor(prompts),
        )

    def prompt_step(self, prompts: Quantity = 1.0) -> StepShape:
        """One of the `chunks` of `prompts` prompts alone."""
        tokens = self.input_length / self.chunks
        return StepShape(
            prefills=prompts,  # type: ignore[arg-type]
            prefill_tokens=prompts * tokens,  # type: ignore[arg-type]
            prefill_context=prompts * (self.input_length - tokens) / 2,  # type: ignore[arg-type]
            prefill_pairs=prompts * tokens * self.input_length / 2,  # type: ignore[arg-type]
            samples=prompts,  # type: ignore[arg-type]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTimes:
    """Seconds per request of a closed loop."""

    ttft: Quantity
    tpot: Quantity


def tokens_per_step(drafts: Quantity, acceptance: Quantity) -> Quantity:
    """y: tokens that a step with `drafts` guesses yields, each right with probability `acceptance`
    after one that was: 1 + a + ... + a^drafts.

    >>> round(float(tokens_per_step(2, 0.5)), 2)
    1.75
    """
    a = np.minimum(acceptance, 0.999)
    return (1 - a ** (drafts + 1)) / (1 - a)


def waiting(engine: EngineConstants, equal: Quantity) -> Quantity:
    """w: of requests of equal lengths, or not."""
    return np.minimum(np.where(equal, engine.arrival.equal_wait, engine.prefill_wait), 1.0)


def arriving(loop: ClosedLoop, engine: EngineConstants, busy: Quantity) -> Quantity:
    """Seconds of a request on its way in and out, of its tokens, and in the mean of the first
    programs, for which all requests of a first wave wait."""
    beside = engine.arrival.beside_seconds * busy * loop.kernels / 1000
    made = engine.arrival.program_seconds * loop.cold / loop.waves
    return engine.arrival.request_seconds + beside + made + TOKEN_SECONDS * loop.input_length


def polling(loop: ClosedLoop, engine: EngineConstants) -> Quantity:
    """Steps until a request is looked at and its first token is sent, beside others."""
    return engine.arrival.poll_steps + (loop.queue_interval - 1) / 2


def waited_steps(loop: ClosedLoop, engine: EngineConstants) -> Quantity:
    """s: those, and the ones for which a server holds prompts back for others."""
    balance = np.where(np.asarray(loop.splits) > 1, engine.arrival.balance_steps, 0.0)
    return (polling(loop, engine) + loop.held_steps + balance) * loop.busy


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSteps:
    """Seconds of the steps of a loop: a decode step, a mixed step, a prompt's chunk on every part
    of the batch at once (`prompt`), and one of as many prompts as a step holds (`full`). `mixed` is
    of one query a sequence where `yields` is 1; its prompts count, over a step without them."""

    decode: Quantity
    mixed: Quantity
    prompt: Quantity
    full: Quantity

    @property
    def added(self) -> Quantity:
        """M - D: what a lump of prompts adds to a decode step."""
        return np.maximum(self.mixed - self.decode, 0.0)  # type: ignore[operator]


def loop_times(
    loop: ClosedLoop, steps: LoopSteps, engine: EngineConstants, equal: Quantity = False
) -> LoopTimes:
    """TTFT and TPOT of requests of equal lengths, or of others; see the head of this file."""
    wait = waiting(engine, equal)
    tokens = np.maximum(loop.output_length / loop.yields - 1, 1.0)
    others = loop.others * loop.mixed_share * steps.added
    tpot = (steps.decode + (1 - wait) * others) / loop.yields
    answer = (loop.output_length - 1) * tpot
    free = 1 - loop.mixed_share
    met = np.where(equal, 1.0, loop.mixed_share + engine.arrival.crowd * free) * loop.others
    seen = waited_steps(loop, engine) * (steps.decode + met * steps.added)
    own = steps.prompt * loop.chunks
    each = steps.full * loop.chunks / loop.room
    waits = np.where(equal, 0.0, queued(each, answer, loop.running))
    steady = own + waits + seen + wait * others * tokens
    first = np.maximum(first_wave(loop, steps), own)
    served = arriving(loop, engine, loop.busy) + steady + (first - steady) / loop.waves
    turns = np.maximum(loop.concurrency / loop.running - 1, 0.0) * (served + answer)
    return LoopTimes(ttft=served + turns, tpot=tpot)


def queued(each: Quantity, answer: Quantity, requests: Quantity) -> Quantity:
    """Seconds that a prompt waits for others' where `requests` go round between one place that
    takes `each` seconds for a prompt, always the same, and `answer` seconds elsewhere.

    Mean value analysis with Schweitzer's estimate: one that comes finds a share (c - 1) / c of the
    mean queue, and of the prompt that is served half (Schweitzer 1979).

    >>> [round(float(queued(1.0, 9.0, c)), 2) for c in (1, 2, 10)]
    [0.0, 0.06, 1.68]
    """
    over = each * requests - answer
    room = each * answer - (requests - 1) * each**2 / 2
    stay = (over + np.sqrt(np.maximum(over**2 + 4 * room, 0.0))) / 2
    return np.maximum(stay - each, 0.0)


def first_wave(loop: ClosedLoop, steps: LoopSteps) -> Quantity:
    """W: mean seconds of the requests that start at once, by one tokenizer and by steps of `room`
    prompts, one after the other."""
    more = np.maximum(np.minimum(loop.running, loop.room) - loop.splits, 0.0)
    room = np.maximum(loop.room - loop.splits, 1.0)
    lump = steps.prompt + (steps.full - steps.prompt) * more / room
    rounds = np.maximum(loop.running / loop.room, 1.0)
    return lump * loop.chunks * (rounds + 1) / 2 + (
        TOKEN_SECONDS * loop.input_length * loop.running / 2
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTimes:
    """What two pools of servers take: `prompt` seconds of a prompt's chunk on each part of a
    prefill server at once, `full` of as many prompts as a step holds, and the seconds of a decode
    step by the sequences of one server."""

    loop: ClosedLoop
    servers: Quantity
    prefill_servers: Quantity
    prompt: Quantity
    full: Quantity
    decode: Callable[[Quantity], Quantity]


def pool_times(pools: PoolTimes, engine: EngineConstants) -> LoopTimes:
    """TTFT and TPOT where servers of their own prefill; see the head of this file. `concurrency` of
    the loop is of one decode server."""
    loop, arrival = pools.loop, engine.arrival
    flying = loop.concurrency * pools.servers
    busy = np.clip(flying - 1, 0.0, 1.0)
    polls = polling(loop, engine) * busy
    prefill = pools.prompt * loop.chunks
    rate = pools.prefill_servers * np.maximum(
        loop.splits / prefill, loop.splits * loop.full_prompts / (pools.full * loop.chunks)
    )
    before = arriving(loop, engine, busy) + arrival.handover_seconds + prefill
    tokens = np.maximum(loop.output_length - 1, 1.0)
    running = loop.running
    for _ in range(_ROUNDS):
        _, _, held, _ = _round(pools, polls, before, rate, tokens, running, engine)
        running = (running + held) / 2
    tpot, goes, _, polled = _round(pools, polls, before, rate, tokens, running, engine)
    first = np.maximum(flying / goes - tokens * tpot, before + polled)
    return LoopTimes(ttft=first + arrival.pool_wait * flying / rate, tpot=tpot)


def _round(
    pools: PoolTimes,
    polls: Quantity,
    before: Quantity,
    rate: Quantity,
    tokens: Quantity,
    running: Quantity,
    engine: EngineConstants,
) -> tuple[Quantity, Quantity, Quantity, Quantity]:
    """TPOT, requests per second, sequences of a server, and seconds polled, at some sequences."""
    loop = pools.loop
    step = pools.decode(running)
    tpot, polled = step / loop.yields, polls * step
    flying = loop.concurrency * pools.servers
    admitted = pools.servers * loop.most_running / (engine.arrival.handover_seconds + tokens * tpot)
    goes = np.minimum(np.minimum(flying / (before + polled + tokens * tpot), rate), admitted)
    held = np.minimum(goes * tokens * tpot / pools.servers, loop.most_running)
    return tpot, goes, np.maximum(held, 1e-3), polled
