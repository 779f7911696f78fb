"""The two interactive figures of ch. 8 as data: latency against throughput, and where a step goes.

LLaMA 3 70B in int8 on sixteen v5e unless other settings are given, by the book's rule of a step:

    t(B, S) = B KV(S) / (N W) + max(2 B P / (N C), P / (N W))
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.book.figures import Figure, Series
from shardwise.book.rules.serving import (
    batch_of_step,
    cache_crossover,
    largest_batch,
    requests_per_second,
    step_seconds,
)
from shardwise.book.seed import book_chip
from shardwise.errors import BadRequest
from shardwise.hardware import Chip
from shardwise.units import format_gib

CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536)
"""The slider of both widgets."""
MOST = 511
"""The largest batch that the widgets draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookServer:
    """Chips with weights of one byte per parameter, and so many bytes of cache per token: by
    default 160 KiB, 2 x 80 layers x 8 heads x 128 in int8."""

    chip: str | Chip = "v5e"
    chips: int = 16
    params: float = 70e9
    kv_bytes: float = 163840.0

    @property
    def hardware(self) -> Chip:
        """The chip: of a name the one with the book's constants."""
        return self.chip if isinstance(self.chip, Chip) else book_chip(self.chip)

    @property
    def bandwidth(self) -> float:
        """Bytes/s of all memories."""
        return self.chips * self.hardware.require("hbm_bandwidth")

    @property
    def peak(self) -> float:
        """FLOP/s of all chips, in bf16."""
        return self.chips * self.hardware.peak("bf16")

    def seconds(self, batch: np.ndarray | int, context: int) -> np.ndarray:
        """One step of a batch at a context."""
        found = step_seconds(
            batch,
            param_bytes=self.params,
            kv_bytes=self.kv_bytes * context,
            bandwidth=self.bandwidth,
            params=self.params,
            peak=self.peak,
        )
        return np.asarray(found)

    def fits(self, context: int) -> int:
        """Sequences of a context whose caches fit beside the weights; BadRequest for none."""
        hbm = self.chips * self.hardware.require("hbm_bytes")
        found = int(largest_batch(hbm, self.params, self.kv_bytes * context))
        if found < 1:
            raise BadRequest(
                f"{self.chips} {self.hardware.id} hold no sequence of {context:,} tokens beside "
                f"{format_gib(self.params)} of weights; give more chips or a shorter context"
            )
        return found


BOOK_SERVER = BookServer()


def pareto(
    server: BookServer = BOOK_SERVER, contexts: Sequence[int] = CONTEXTS, most: int = MOST
) -> Figure:
    """Seconds per token against tokens per second and chip, a point per batch that fits (up to
    `most`), a curve per context."""
    series, readings = [], {}
    for context in contexts:
        batch = np.arange(1, min(server.fits(context), most) + 1)
        seconds = server.seconds(batch, context)
        each = np.asarray(requests_per_second(batch, seconds, 1)) / server.chips / 1000
        label = f"S={context}"
        series.append(Series(label=label, x=tuple(seconds.tolist()), y=tuple(each.tolist())))
        readings[f"batch.{label}"] = float(batch[-1])
        readings[f"seconds.{label}"] = float(seconds[0])
        readings[f"tokens_per_ms.{label}"] = float(each[0])
        readings[f"seconds_at_batch.{label}"] = float(seconds[-1])
        readings[f"tokens_per_ms_at_batch.{label}"] = float(each[-1])
    readings["cheaper_at_twice_the_latency"] = _cheaper(server, contexts[0])
    return Figure(
        id="fig.8.pareto",
        chapter="8",
        title=f"Latency and throughput on {server.chips} {server.hardware.id}, a point per batch",
        source="ch. 8.2, interactive figure (pareto)",
        x_label="time per token",
        x_unit="s",
        y_label="throughput",
        y_unit="tokens/ms/chip",
        log="xy",
        series=tuple(series),
        readings=readings,
    )


def _cheaper(server: BookServer, context: int) -> float:
    """How many times cheaper a token gets when a step may take twice as long as with one sequence:
    of a batch B in time t, B / t over 1 / t_1."""
    alone = float(server.seconds(1, context))
    batch = batch_of_step(
        2 * alone,
        kv_bytes=server.kv_bytes * context,
        bandwidth=server.bandwidth,
        params=server.params,
        peak=server.peak,
    )
    return float(batch) / 2


def breakdown(server: BookServer = BOOK_SERVER, context: int = 2048, most: int = MOST) -> Figure:
    """Seconds of a decode step by part against the batch: loading weights, loading caches, FLOPs,
    and the whole step."""
    batch = np.arange(1, most + 1)
    ones = np.ones(len(batch))
    parts = {
        "weights": server.params / server.bandwidth * ones,
        "caches": batch * server.kv_bytes * context / server.bandwidth,
        "FLOPs": 2 * batch * server.params / server.peak,
        "step": server.seconds(batch, context),
    }
    x = tuple(map(float, batch))
    return Figure(
        id="fig.8.breakdown",
        chapter="8",
        title=f"A decode step on {server.chips} {server.hardware.id} at {context:,} tokens",
        source="ch. 8.2, interactive figure (latency breakdown)",
        x_label="batch",
        x_unit="sequences",
        y_label="time per step",
        y_unit="s",
        log="xy",
        series=tuple(Series(label=k, x=x, y=tuple(map(float, y))) for k, y in parts.items()),
        readings={
            "weights_seconds": float(parts["weights"][0]),
            "compute_bound_batch": float(server.peak / server.bandwidth / 2),
            "kv_over_flops_context": float(
                cache_crossover(server.params, server.kv_bytes, server.peak, server.bandwidth)
            ),
            "batch_that_fits": float(server.fits(context)),
        },
    )
