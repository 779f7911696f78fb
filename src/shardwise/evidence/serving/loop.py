"""A closed loop of requests in closed form: TTFT and TPOT from the times of three steps.

`concurrency` requests of I prompt and O answer tokens are always in flight; at most `most_running`
of them fit into the cache, n of them decode. A decode step lets n/O requests finish, so as many
prompts come in: q = n I / O prompt tokens per step. They come in lumps of a prompt (of q where that
is more, of the token budget where that is less), so a share f = q / lump of the steps is mixed:

    mean step = D + f (M - D)           D a decode step, M a mixed one of n sequences and a lump
    E2E       = P + D/2 + (O - 1) x mean step          P the prefill of a prompt alone

An engine moves a part w (`prefill_wait`) of the others' prefill f (M - D) (O - 1) from the time
between tokens to the time before the first: w is 0 where prompts trickle in beside decodes, and
half where all of a wave wait for its prompts. Requests beyond n queue for their turn.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.scheduling.step import StepShape
from shardwise.work import Quantity

TOKEN_BUDGET = 8192
"""Tokens of one step: the default of vLLM (`max_num_batched_tokens`) on chips of 80 GB, of SGLang
(`chunked_prefill_size`) and of TensorRT-LLM (`max_num_tokens`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """What is in flight; numbers or arrays over candidates."""

    concurrency: Quantity
    input_length: Quantity
    output_length: Quantity
    most_running: Quantity = np.inf
    token_budget: Quantity = TOKEN_BUDGET

    @property
    def running(self) -> Quantity:
        """n: requests that decode at once."""
        return np.maximum(np.minimum(self.concurrency, self.most_running), 1.0)

    @property
    def prompt_tokens(self) -> Quantity:
        """q: prompt tokens that come in per step."""
        return self.input_length * self.running / self.output_length

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

    def decode_step(self) -> StepShape:
        """n sequences at the mean context: the prompt and half of the answer."""
        context = self.input_length + self.output_length / 2
        n = self.running
        return StepShape(decodes=n, decode_tokens=n, decode_context=n * context, samples=n)  # type: ignore[arg-type]

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

    def end_to_end(self, output_length: Quantity) -> Quantity:
        """From arrival to the last token."""
        return self.ttft + (output_length - 1) * self.tpot


def loop_times(
    loop: ClosedLoop, decode: Quantity, mixed: Quantity, prompt: Quantity, wait: Quantity
) -> LoopTimes:
    """TTFT and TPOT from the seconds of a decode step, a mixed step and a prompt's chunk; `wait` is
    the engine's `prefill_wait`."""
    steps = np.maximum(loop.output_length - 1, 1.0)
    others = loop.mixed_share * (mixed - decode)
    tpot = decode + (1 - wait) * others
    served = prompt * loop.chunks + decode / 2 + wait * others * steps
    queued = np.maximum(loop.concurrency / loop.running - 1, 0.0) * (served + steps * tpot)
    return LoopTimes(ttft=served + queued, tpot=tpot)
