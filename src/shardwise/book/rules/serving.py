"""The book's closed rules for serving (ch. 7 and 8): steps, batches, servers, thresholds.

Every argument may be an array. `param_bytes` and `kv_bytes` are those of all weights and of one
sequence's cache, `bandwidth` and `peak` the totals of all chips. These are rules of thumb beside
the plans that the search prices op by op.
"""

import numpy as np

from shardwise.work import Quantity


def step_seconds(
    batch: Quantity,
    *,
    param_bytes: Quantity,
    kv_bytes: Quantity,
    bandwidth: Quantity,
    params: Quantity,
    peak: Quantity,
) -> Quantity:
    """One decode step: B KV / W + max(2 B P / C, param bytes / W) (ch. 7.1.7).

    Attention is bound by bandwidth at any batch, the MLP by FLOPs above the critical batch. Without
    FLOPs a step is (B KV + param bytes) / W, the seconds of `comms_seconds`.
    """
    return batch * kv_bytes / bandwidth + np.maximum(
        2 * batch * params / peak, param_bytes / bandwidth
    )


def largest_batch(hbm_bytes: Quantity, param_bytes: Quantity, kv_bytes: Quantity) -> Quantity:
    """Sequences whose caches fit beside the weights."""
    return np.floor((hbm_bytes - param_bytes) / kv_bytes)


def batch_of_step(
    seconds: Quantity,
    *,
    kv_bytes: Quantity,
    bandwidth: Quantity,
    params: Quantity,
    peak: Quantity,
) -> Quantity:
    """The batch whose step takes so long where FLOPs bound the MLP: `step_seconds` turned round."""
    return seconds / (kv_bytes / bandwidth + 2 * params / peak)


def cache_crossover(
    params: Quantity, kv_bytes_per_token: Quantity, peak: Quantity, bandwidth: Quantity
) -> Quantity:
    """Context above which loading a sequence's cache takes longer than its FLOPs (ch. 8.2)."""
    return 2 * params / peak * bandwidth / kv_bytes_per_token


def requests_per_second(batch: Quantity, step: Quantity, answer: Quantity) -> Quantity:
    """Answers of `answer` tokens that a batch finishes per second (ch. 8.1.1)."""
    return batch / (step * answer)


def prefill_servers(
    prefill: Quantity, batch: Quantity, step: Quantity, answer: Quantity
) -> Quantity:
    """Servers that prefill for one that decodes: prefill B / (step G) (ch. 8.1.2)."""
    return prefill * requests_per_second(batch, step, answer)


def evicted_tokens(batch: Quantity, prompt: Quantity, answer: Quantity) -> Quantity:
    """Tokens that leave the cache per decode step: B (P + G) / G (ch. 8.1.2)."""
    return batch / answer * (prompt + answer)


def generate_tensor_limit(d_ff: Quantity, batch: Quantity, beta: Quantity) -> Quantity:
    """Tensor degree above which a small batch is bound by its links: F / (B beta), with beta the
    HBM bandwidth over that of an axis (ch. 7.3.2)."""
    return d_ff / (batch * beta)


def weight_stationary_coefficient(f_over_d: Quantity = 4.0) -> Quantity:
    """c in T = c B D / (sqrt(N) W), the communication of 2-D weight-stationary sharding.

    With X chips along D and Y Z along F in bf16, a gather and a scatter over two axes take
    2 B D / (X W) together and an all-reduce over one takes 4 B F / (Y Z W): least where they are
    equal, at X = sqrt(N D / (2 F)), and c = sqrt(32 F / D) (ex. 7.7).
    """
    return np.sqrt(32 * f_over_d)


def weight_stationary_chips(f_over_d: Quantity = 4.0) -> Quantity:
    """Chips above which 2-D weight-stationary sharding beats cutting F alone over three axes of a
    torus, whose 4 B D / (3 W) does not shrink: 32 F / D (3/4)^2 (ex. 7.7)."""
    return (weight_stationary_coefficient(f_over_d) * 3 / 4) ** 2


def latency_bound_bytes(shards: Quantity, oneway: Quantity, hop: Quantity = 1e-6) -> Quantity:
    """Buffers below this size are bound by latency: a shard takes less than a hop (app. 7.6.3)."""
    return shards * oneway * hop


def latency_bound_degree(buffer: Quantity, oneway: Quantity, hop: Quantity = 1e-6) -> Quantity:
    """Shards above which a buffer is bound by latency: bytes / (W hop) (app. 7.6.3)."""
    return buffer / (oneway * hop)


def speculated_tokens(drafted: Quantity, matched: Quantity) -> Quantity:
    """Tokens that a greedy speculative step yields: the longest correct prefix of the draft and
    the token that the target model puts after it (ch. 7, speculative sampling)."""
    return np.minimum(matched, drafted) + 1


def prefill_left(tokens: Quantity, hits: Quantity) -> Quantity:
    """Share of a prompt that is still to be computed after a prefix hit (ch. 7.4.2)."""
    return 1 - hits / tokens


def flops_per_dollar(peak: Quantity, usd_per_hour: Quantity) -> Quantity:
    """FLOPs at peak that a dollar buys (ch. 8.1)."""
    return peak * 3600 / usd_per_hour


def batch_cache(batch: Quantity, kv_bytes: Quantity) -> Quantity:
    """Bytes of the caches of a batch: B x those of one sequence (ch. 7.1.7)."""
    return batch * kv_bytes


def throughput(batch: Quantity, seconds: Quantity) -> Quantity:
    """Tokens per second of steps that give each sequence one token: B / T."""
    return batch / seconds


def token_cost(usd_per_hour: Quantity, tokens_per_second: Quantity) -> Quantity:
    """Dollars per token of a server: its price per hour over the tokens of an hour."""
    return usd_per_hour / (3600 * tokens_per_second)


def weight_stationary_degree(chips: Quantity, f_over_d: Quantity = 4.0) -> Quantity:
    """Chips along D with the least communication of 2-D weight-stationary sharding:
    X = sqrt(N D / (2F)); the others cut F (ex. 7.7)."""
    return np.sqrt(chips / (2 * f_over_d))


def weight_stationary_seconds(
    batch: Quantity,
    d_model: Quantity,
    chips: Quantity,
    bandwidth: Quantity,
    f_over_d: Quantity = 4.0,
) -> Quantity:
    """The least communication of a 2-D weight-stationary MLP in bf16: c B D / (sqrt(N) W)."""
    coefficient = weight_stationary_coefficient(f_over_d)
    return coefficient * batch * d_model / (np.sqrt(chips) * bandwidth)
