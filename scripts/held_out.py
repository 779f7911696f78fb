"""The loss of a checkpoint on other text: every row once, on one device, without a gradient."""

from pathlib import Path

import jax
import numpy as np

from shardwise.runtime.attention import best_attention
from shardwise.runtime.init import shapes as shapes_of
from shardwise.runtime.model import cross_entropy, forward
from shardwise.runtime.options import Options
from shardwise.runtime.precision import dtype_of
from shardwise.runtime.text.tokenizer import tokenizer_of
from shardwise.runtime.trainer.checkpoint import read_params
from shardwise.runtime.trainer.data import Feed, corpus_of
from shardwise.runtime.trainer.loop import TrainRun


def held_out_loss(run: TrainRun, checkpoint: Path, data: Path) -> tuple[float, int]:
    """Mean nats per token of `data` under the parameters of a checkpoint of `run`, and how many
    tokens; the last rows that do not fill a batch are left out."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    params = read_params(checkpoint, shapes_of(run.cfg, dtype_of(run.plan.dtypes.param)))
    tokenizer = tokenizer_of(run.tokenizer_file, run.cfg.vocabulary)
    corpus = corpus_of(data, tokenizer, run.out / "data")
    B, T = run.plan.global_batch_sequences, run.plan.sequence_length
    feed = Feed(corpus=corpus, rows=B, length=T, seed=run.seed)
    options = Options(compute=run.plan.dtypes.compute, kernel=best_attention)

    @jax.jit
    def score(params: dict, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        logits_BTV = forward(
            params,
            batch["tokens"],
            run.cfg,
            options,
            positions_BT=batch["positions"],
            segments_BT=batch["segments"],
        )
        return cross_entropy(logits_BTV, batch["targets"], batch["weights"])

    batches = (feed.batch(step, here) for step in range(corpus.rows(T) // B))
    sums = [score(params, batch) for batch in batches]
    nats, count = np.asarray(sums, np.float64).sum(axis=0)
    return float(nats / count), int(count)
