"""Every rule of the book by name: its function, its formula, its unit and its place in the book.

`rule("mixed_limit")` finds one and calls it with plain values: a chip by its name, a mesh as
degrees by axis, element sizes as dtypes; numbers may be lists. `shardwise.book` exports the
functions themselves, which take the values of the library.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from inspect import Parameter, getdoc, signature
from typing import Any

import numpy as np

from shardwise.book import figures
from shardwise.book.arguments import read_arguments
from shardwise.book.rules import (
    blocks,
    chips,
    collectives,
    gpu,
    lanes,
    laws,
    mlp,
    serving,
    shards,
    sums,
    tori,
    training,
    transformer,
)
from shardwise.errors import BadRequest, check_known, shown, unknown
from shardwise.hardware import fat_tree as trees
from shardwise.hardware import slices, totals
from shardwise.models import activations as saved
from shardwise.models import counts, kv
from shardwise.models import flops as work
from shardwise.roofline import chip_roofline, matmul, transfer, tree


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """A public function of the book with its formula, the unit of its answer and its source."""

    function: Callable[..., Any]
    formula: str
    unit: str
    source: str

    @property
    def name(self) -> str:
        """What `rule` and `shardwise book rule` call it."""
        return self.function.__name__

    @property
    def about(self) -> str:
        """Its docstring's first paragraph, on one line."""
        return " ".join((getdoc(self.function) or "").split("\n\n")[0].split())

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """What it takes."""
        return signature(self.function).parameters

    def units(self) -> dict[str, str]:
        """The unit of each argument; empty where it has none."""
        return {name: UNITS.get(name, "") for name in self.parameters}

    def __call__(self, **given: Any) -> Any:
        """Its answer for plain values. Raises BadRequest for an argument that it does not take,
        for one that is missing, and for a value that it refuses."""
        self._check(given)
        try:
            with np.errstate(all="ignore"):
                found = self.function(**read_arguments(self.parameters, given))
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise self._unanswered(given, str(error)) from None
        if _undefined(found):
            raise self._unanswered(given, "it divides nothing by nothing, or has no solution")
        return found

    def _unanswered(self, given: Mapping[str, Any], why: str) -> BadRequest:
        values = ", ".join(f"{n}={shown(v)}" for n, v in given.items())
        return BadRequest(f"{self.name} has no answer for {values}: {why}")

    def _check(self, given: Mapping[str, Any]) -> None:
        for name in given:
            if name not in self.parameters:
                raise unknown(f"argument of {self.name}", name, self.parameters)
        lacking = [
            name
            for name, parameter in self.parameters.items()
            if parameter.default is Parameter.empty and name not in given
        ]
        if lacking:
            raise BadRequest(
                f"{self.name} needs {', '.join(lacking)}; give each, such as {lacking[0]}=..."
            )


def _undefined(value: Any) -> bool:
    """Whether an answer, or a part of it, is no number at all. An array may lack some of its
    values, as a sweep does beyond a rule's range."""
    if isinstance(value, float | np.ndarray):
        return bool(np.all(np.isnan(value)))
    if isinstance(value, tuple):
        return any(map(_undefined, value))
    names = value.__dataclass_fields__ if is_dataclass(value) else ()
    return any(_undefined(getattr(value, name)) for name in names)


def rule(name: str) -> ClosedForm:
    """One rule; BadRequest names the nearest for a typo."""
    check_known("rule", name, RULES, "`shardwise book rule` lists all")
    return RULES[name]


UNITS = {
    "alpha": "FLOP/byte",
    "answer": "tokens",
    "bandwidth": "bytes/s",
    "batch": "sequences",
    "batch_tokens": "tokens",
    "buffer": "bytes",
    "bytes": "bytes",
    "bytes_per_chip": "bytes",
    "bytes_moved": "bytes",
    "bytes_per_token": "bytes",
    "chip_seconds": "s",
    "chips": "chips",
    "clock_hz": "Hz",
    "context": "tokens",
    "d_ff": "elements",
    "d_model": "elements",
    "drafted": "tokens",
    "elements": "dtype",
    "flops": "FLOP",
    "hbm_bytes": "bytes",
    "hop": "s",
    "hop_seconds": "s",
    "hours": "h",
    "intensity": "FLOP/byte",
    "kv_bytes": "bytes",
    "kv_bytes_per_token": "bytes/token",
    "limit": "tokens/chip",
    "matched": "tokens",
    "mfu": "ratio",
    "oneway": "bytes/s",
    "param_bytes": "bytes",
    "params": "params",
    "payload_bytes": "bytes",
    "peak": "FLOP/s",
    "peak_flops": "FLOP/s",
    "prefill": "s",
    "prompt": "tokens",
    "result_bytes": "bytes",
    "seconds": "s",
    "sequence_length": "tokens",
    "shard_bytes": "bytes",
    "step": "s",
    "tokens": "tokens",
    "tokens_per_chip": "tokens/chip",
    "tokens_per_second": "tokens/s",
    "total_bytes": "bytes",
    "usd_per_chip_hour": "USD/h",
    "usd_per_hour": "USD/h",
}
"""Units of arguments by name; counts of things have none."""


def _rules(*rows: tuple[Callable[..., Any], str, str, str]) -> dict[str, ClosedForm]:
    found = [
        ClosedForm(function=f, formula=text, unit=unit, source=place)
        for f, text, unit, place in rows
    ]
    return {one.name: one for one in found}


RULES: Mapping[str, ClosedForm] = _rules(
    # Rooflines (ch. 1)
    (chip_roofline.math_seconds, "FLOPs / (FLOP/s)", "s", "ch. 1"),
    (chip_roofline.comms_seconds, "bytes / (bytes/s)", "s", "ch. 1"),
    (chip_roofline.critical_intensity, "C / W", "FLOP/byte", "ch. 1"),
    (chip_roofline.attainable_flops, "min(C, I W)", "FLOP/s", "ch. 1"),
    (chip_roofline.level_bandwidth, "catalogue", "bytes/s", "ch. 1, 2"),
    (chip_roofline.chip_critical_intensity, "C / W of a level", "FLOP/byte", "ch. 1, 12"),
    (chip_roofline.vector_critical_intensity, "vector C / W", "FLOP/byte", "ch. 1, 12"),
    (chip_roofline.elementwise_intensity, "n / (arrays bytes)", "FLOP/byte", "ch. 12, quiz 1"),
    (chip_roofline.elementwise_times, "max(n / C, bytes / W)", "s", "ch. 12, quiz 1"),
    (matmul.matmul_flops, "2 m k n", "FLOP", "ch. 1, 4.1"),
    (matmul.matmul_bytes, "r (m k + k n), w m n", "bytes", "ch. 1"),
    (matmul.matmul_intensity, "2mkn / (l mk + r kn + o mn)", "FLOP/byte", "ch. 1"),
    (matmul.matmul_times, "2mkn / C and bytes / W", "s", "ch. 1"),
    (matmul.critical_batch, "m: 2mkn / bytes = I", "tokens", "ch. 1, 2.4"),
    (matmul.critical_batch_approx, "I r / 2", "tokens", "ch. 1, 7.1"),
    (matmul.first_batch_at_peak, "ceil(critical batch)", "tokens", "ch. 1, exercise 1.3"),
    (matmul.tile_intensity, "2 bm bn / (l bm + r bn)", "FLOP/byte", "ch. 1, tiling"),
    (matmul.matmul_flops_exact, "m n (2k - 1)", "FLOP", "ch. 1"),
    (matmul.padded_flops, "2mkn, dims up to tiles", "FLOP", "ch. 2"),
    (matmul.split_contraction_times, "2mkn / (N C), result / W", "s", "ch. 1, network"),
    (matmul.split_contraction_threshold, "chips result C / (2 W)", "elements", "ch. 1, network"),
    # Chips and networks (ch. 2, 12)
    (chips.chip_number, "catalogue", "", "ch. 2, 12, tables"),
    (chips.dense_peak, "catalogue", "FLOP/s", "ch. 2, 12, tables"),
    (chips.torus_alpha, "C / (M W)", "FLOP/byte", "ch. 5.1"),
    (chips.axis_alpha, "C / W", "FLOP/byte", "ch. 5.1, 12"),
    (chips.fleet, "chips x number", "", "ch. 2, 7.1"),
    (chips.chip_cost, "chips hours price", "USD", "ch. 8.1"),
    (chips.hosts, "ceil(chips / chips per host)", "hosts", "ch. 2"),
    (chips.smallest_slice, "least N: N HBM >= bytes", "chips", "ch. 7.6, 8.1.1"),
    (chips.topology_table, "N HBM - weights; / KV", "", "ch. 8.1.1"),
    (chips.slice_bisection, "links across the middle", "bytes/s", "ch. 2, 12"),
    (chips.level_roofline, "min(C, I W of a level)", "", "ch. 1, 2"),
    (chips.route_seconds, "bytes / W of each way", "s", "ch. 2"),
    (slices.domain_of, "product of the pod's axes", "chips", "ch. 2"),
    (totals.pod_totals, "pod chips x number", "", "ch. 2, exercise 2.2"),
    (totals.link_both_ways, "2 W_oneway", "bytes/s", "ch. 2"),
    (totals.torus_axes, "axes of the pod", "axes", "ch. 2"),
    (totals.torus_egress, "2 axes W_oneway", "bytes/s", "ch. 2"),
    (totals.systolic_flops_per_cycle, "2 k n", "FLOP/cycle", "ch. 2"),
    (totals.systolic_flops, "2 k n clock", "FLOP/s", "ch. 2"),
    (totals.matmul_units, "cores x units", "", "ch. 12, GPUs beside TPUs"),
    (totals.vector_units, "cores x units", "", "ch. 12, GPUs beside TPUs"),
    (totals.sram_bytes_per_core, "catalogue", "bytes", "ch. 12"),
    (totals.register_bytes_per_core, "registers x words x 4", "bytes", "ch. 2, app. A"),
    (totals.register_bytes, "cores x registers x words x 4", "bytes", "ch. 12"),
    (totals.resident_warps, "registers / (32 per thread)", "warps", "ch. 12"),
    (totals.matmul_flops_per_cycle, "C / (units clock)", "FLOP/cycle", "ch. 12"),
    (totals.alus, "vector units x lanes", "", "ch. 12"),
    (totals.vector_ops, "ALUs clock", "FLOP/s", "ch. 12, quiz 1"),
    (totals.vector_clock, "C / (2 ALUs)", "Hz", "ch. 12, quiz 1"),
    (lanes.warp_divergence, "sum n_i; sum(l_i n_i) / (32 sum n_i)", "cycles", "ch. 12"),
    (lanes.warps_hiding, "1 + latency / busy", "warps", "ch. 12"),
    (lanes.lane_sum, "n / w - 1 adds, log2(w) moves", "instructions", "ch. 2, app. C"),
    (totals.fat_tree, "levels of switches", "", "ch. 12, SuperPod tables"),
    (totals.node_egress, "domain x NIC", "bytes/s", "ch. 12"),
    (trees.switch_counts, "units x switches", "switches", "ch. 12"),
    (trees.bisection_oneway, "N W / 2", "bytes/s", "ch. 12, quiz 2"),
    (trees.effective_oneway, "min(switches, cables)", "bytes/s", "ch. 12, quiz 2"),
    (trees.scale_out, "tiers without oversubscription", "switches", "ch. 12, quiz 3"),
    (transfer.parallel_seconds, "bytes / (links W)", "s", "ch. 2"),
    (transfer.torus_hops, "sum of the shorter ways", "hops", "ch. 2.5"),
    (tori.torus_spread, "mean and most hops", "hops", "ch. 2.2"),
    (transfer.torus_ports, "links within the slice", "links", "ch. 2.5"),
    (transfer.send_seconds, "bytes / (ports W) + hops t", "s", "ch. 2.5"),
    (transfer.gather_to_one_seconds, "bytes (N - 1) / (N ports W)", "s", "ch. 2.6"),
    (transfer.pipelined_lower, "max(stages)", "s", "ch. 2.6"),
    # Collectives and sharded arrays (ch. 3, 12)
    (collectives.gather_seconds, "V / (M W)", "s", "ch. 3.2"),
    (collectives.reduce_seconds, "2 V / (M W)", "s", "ch. 3.2"),
    (collectives.oneway_gather_seconds, "V (N - 1) / (N W)", "s", "ch. 3.2"),
    (collectives.line_gather_seconds, "hops max(shard / W, t)", "s", "ch. 3, pop quiz 2"),
    (collectives.exchange_seconds, "V / (4 W)", "s", "ch. 3.2, exercise 3.10"),
    (collectives.oneway_exchange_seconds, "V / (2 W)", "s", "ch. 3, exercise 3.10"),
    (collectives.exchange_scalars, "N^2 (D - 1) / (2 D)", "scalars", "ch. 3, exercise 3.10"),
    (collectives.exchange_gain, "2 D (D - 1) / (D/2 (D/2 + 1))", "ratio", "ch. 3, exercise 3.10"),
    (collectives.gather_first_degree, "D / (2 alpha)", "chips", "ch. 3, exercise 3.4"),
    (collectives.reduce_after_width, "2 alpha", "elements", "ch. 3, exercise 3.4"),
    (collectives.slice_seconds, "V (N - 1) / (N W) or V / W", "s", "ch. 3, 12"),
    (collectives.ragged_share, "(1 - ((Z-1)/Z)^K) (Z-1)/Z", "ratio", "ch. 12, app. B"),
    (collectives.ragged_share_approx, "min(K/Z, 1) (Z-1)/Z", "ratio", "ch. 12, app. B"),
    (tree.gather_rate, "D W / (D - 1)", "bytes/s", "ch. 12"),
    (tree.tree_seconds, "V (D-1) / (D max(Y, S) W) per level", "s", "ch. 12, quiz 4"),
    (tree.gather_bytes, "V, N V; V, (M-1) V", "bytes", "ch. 12, quiz 4"),
    (tree.sharp_bytes, "N V", "bytes", "ch. 12, quiz 4"),
    (shards.sharded_bytes, "size / shards x dtype", "bytes", "ch. 3.1"),
    (shards.local_sizes, "size / degree", "elements", "ch. 3.1"),
    (shards.layout_copies, "product of idle axes", "copies", "ch. 3, exercise 3.1"),
    (shards.sharded_product_times, "quickest program", "s", "ch. 3.3"),
    # Transformers (ch. 4)
    (transformer.transformer, "L D F N K H V", "model", "ch. 4.2"),
    (transformer.contraction_flops, "2 x product of dims", "FLOP", "ch. 4.1"),
    (transformer.training_flops, "6 params per token", "FLOP/token", "ch. 4.2"),
    (transformer.flash_intensity, "4 T S N H / bytes", "FLOP/byte", "ch. 4, exercise 4.4"),
    (transformer.book_saved, "20, 7 or 1", "", "ch. 4.4.2"),
    (transformer.remat_multiplier, "(6 + 2 rerun) / 6", "ratio", "ch. 4.4.2"),
    (transformer.combine_softmax, "L1 e^(M1-M) + L2 e^(M2-M)", "", "ch. 4, flash attention"),
    (transformer.flash_gap, "max |P dP - dO O|", "ratio", "ch. 4, flash attention"),
    (counts.params_total, "sum of parameters", "params", "ch. 4.2"),
    (counts.params_active, "k of E experts", "params", "ch. 4.2"),
    (counts.params_by_component, "parameters by component", "params", "ch. 4.2"),
    (counts.weight_bytes, "params x dtype", "bytes", "ch. 7"),
    (work.six_nd, "6 N D", "FLOP", "ch. 4.3"),
    (work.forward_flops_per_token, "2 N + attention", "FLOP/token", "ch. 4.3"),
    (work.model_flops_per_token, "6 N + attention", "FLOP/token", "ch. 4.3"),
    (work.attention_over_matmul, "T / (8D) for F = 4D", "ratio", "ch. 4.3"),
    (work.attention_crossover, "8 D for F = 4D", "tokens", "ch. 4.3"),
    (kv.kv_bytes, "2 S L K H x dtype", "bytes", "ch. 4.5"),
    (kv.kv_bytes_per_token, "2 L K H x dtype", "bytes/token", "ch. 4.5"),
    (saved.book_activation_bytes, "tokens L saved D x dtype", "bytes", "ch. 4.4.2"),
    (saved.activation_bytes, "what a policy keeps", "bytes", "ch. 4.4.2"),
    (saved.recompute_flops_per_token, "FLOPs run again", "FLOP/token", "ch. 4.4.2"),
    # Training (ch. 5, 6)
    (transformer.state_bytes, "N (param + 2 moments)", "bytes", "ch. 5.1.2"),
    (mlp.mlp_times, "4 B D F / (X Y C), ...", "s", "ch. 5.2"),
    (mlp.mlp_traffic, "4DF/Y, 4BD/X, ...", "bytes", "ch. 5.2"),
    (training.data_limit, "alpha / M", "tokens/chip", "ch. 5.1.1"),
    (training.data_chips, "B / limit", "chips", "ch. 5.1.2"),
    (training.tensor_limit, "F M / alpha", "chips", "ch. 5.1.3"),
    (training.tensor_d_ff, "Y alpha / M", "elements", "ch. 5.1.3"),
    (training.mixed_limit, "alpha^2 / (M_X M_Y F)", "tokens/chip", "ch. 5.1.4"),
    (training.x_opt, "sqrt(B N M_X / (F M_Y))", "chips", "ch. 5.1.4"),
    (training.x_balanced, "larger root of T_comms = T_math", "chips", "ch. 5.4.3, 6.3"),
    (training.book_mesh, "X to a power of two", "chips", "ch. 6.3"),
    (training.least_batch, "N x limit", "tokens", "ch. 5.1"),
    (training.moe_limit, "limit E / k", "tokens/chip", "ch. 7.1, 12"),
    (training.largest_replicated, "HBM / bytes per parameter", "params", "ch. 5.1.1"),
    (training.checkpoint_bytes, "tokens L width x dtype", "bytes", "ch. 5, exercise 5.2"),
    (training.pipeline_bubble, "(K - 1) / (M + K - 1)", "ratio", "deck"),
    (training.petaflop_days, "days 1e15 86400", "FLOP", "deck"),
    (training.sequence_limit, "B / T", "chips", "ch. 6.3"),
    (training.min_chips, "ceil(bytes / HBM)", "chips", "ch. 6.2"),
    (training.training_seconds, "FLOPs / (N C MFU)", "s", "ch. 6.1"),
    (laws.loss_law, "E + A / N^alpha + B / D^beta", "nats/token", "deck, scaling laws"),
    (laws.compute_optimal, "least loss of C = 6 N D", "", "deck, scaling laws"),
    (laws.optimal_tokens, "20 N", "tokens", "deck, scaling laws"),
    (laws.total_seconds, "compute + comms - overlap", "s", "deck"),
    (laws.scalar_dot, "2n loads, n mul, n add", "", "deck, home exercise"),
    (training.days, "s / 86400", "days", "ch. 6.1"),
    (training.years, "s / (365 x 86400)", "years", "ch. 6.1"),
    (training.rescaled, "s N / N'", "s", "ch. 6.2"),
    (training.run_mfu, "6 N D / (chips s C)", "ratio", "ch. 4, exercise 4.7"),
    (training.utilisation, "FLOPs / (chip-s C)", "ratio", "ch. 4, exercise 4.7"),
    (figures.ratio_readings, "crossings of T_math / T_comms = 1", "", "ch. 5.1.4, figure"),
    (figures.split_weights_seconds, "4DF / (Y W M_X)", "s", "ch. 5.1.4, interactive figure"),
    (figures.split_activations_seconds, "4BD / (X W M_Y)", "s", "ch. 5.1.4, interactive figure"),
    (figures.split_thresholds, "B: T_math = T_comms", "tokens", "ch. 5.1.4, interactive figure"),
    # Serving (ch. 7, 8)
    (serving.step_seconds, "B KV / W + max(2 B P / C, bytes / W)", "s", "ch. 7.1.7"),
    (serving.largest_batch, "(HBM - weights) / KV", "sequences", "ch. 7.1.7, 8.2"),
    (serving.batch_of_step, "T / (KV / W + 2 P / C)", "sequences", "ch. 8.2"),
    (serving.batch_cache, "B KV", "bytes", "ch. 7.1.7"),
    (serving.throughput, "B / T", "tokens/s", "ch. 7.1.7"),
    (serving.token_cost, "USD per hour / (3600 tokens/s)", "USD/token", "ch. 8.1"),
    (serving.cache_crossover, "2 P W / (C KV per token)", "tokens", "ch. 8.2"),
    (serving.requests_per_second, "B / (T G)", "1/s", "ch. 8.1.1"),
    (serving.prefill_servers, "prefill B / (T G)", "servers", "ch. 8.1.2"),
    (serving.evicted_tokens, "B (P + G) / G", "tokens/step", "ch. 8.1.2"),
    (serving.generate_tensor_limit, "F / (B beta)", "chips", "ch. 7.3.2"),
    (serving.weight_stationary_coefficient, "sqrt(32 F / D)", "", "ch. 7, exercise 7.7"),
    (serving.weight_stationary_chips, "32 F / D (3/4)^2", "chips", "ch. 7, exercise 7.7"),
    (serving.weight_stationary_degree, "sqrt(N D / (2F))", "chips", "ch. 7, exercise 7.7"),
    (serving.weight_stationary_seconds, "c B D / (sqrt(N) W)", "s", "ch. 7, exercise 7.7"),
    (serving.latency_bound_bytes, "shards W t", "bytes", "ch. 7.6.3"),
    (serving.latency_bound_degree, "bytes / (W t)", "chips", "ch. 7.6.3"),
    (serving.speculated_tokens, "matched + 1", "tokens", "ch. 7.5"),
    (serving.prefill_left, "1 - hits / tokens", "ratio", "ch. 7.4.2"),
    (serving.flops_per_dollar, "3600 C / price", "FLOP/USD", "ch. 8.1"),
    # GPUs (ch. 12)
    (gpu.alphas, "C / W_gpu, C / W_node", "tokens/chip", "ch. 12, Data Parallelism"),
    (gpu.few_groups_limit, "alpha (X - 1) / X", "tokens/chip", "ch. 12, Data Parallelism"),
    (gpu.spanned_limit, "alpha / m", "tokens/chip", "ch. 12, Data Parallelism"),
    (gpu.sharp_limit, "alpha / 2", "tokens/chip", "ch. 12, In-network reductions"),
    (gpu.sharp_saving, "2 (N - 1) / N", "ratio", "ch. 12, quiz 4"),
    (gpu.sharp_bandwidth, "1.3 W", "bytes/s", "ch. 12, In-network reductions"),
    (gpu.tensor_limit_across, "domain + F / alpha", "chips", "ch. 12, Tensor Parallelism"),
    (gpu.expert_d_ff, "alpha min((Z-d)/k, d (1-d/Z))", "elements", "ch. 12, Expert Parallelism"),
    (gpu.expert_degree, "domain + k F / alpha", "chips", "ch. 12, Expert Parallelism"),
    (gpu.pipeline_transfer, "(M + K - 2) 2BD / (W M)", "s", "ch. 12, Pipeline Parallelism"),
    (gpu.pipeline_step, "(M + K - 1)(f + b) + ...", "s", "ch. 12, Pipeline Parallelism"),
    (gpu.joined_nodes, "node and the unit above it", "", "ch. 12, quiz 4"),
    # What is run, and what was measured (ch. 3, 9, 10, 12)
    (blocks.summed_everywhere, "0 + 1 + ... + (N - 1)", "", "ch. 3, exercise 3.8"),
    (blocks.mean_of_shards, "mean over devices", "", "ch. 10"),
    (blocks.shard_means, "mean per block", "", "ch. 10, exercise 10.1"),
    (blocks.routed_experts_gap, "max |routed - dense|", "ratio", "ch. 10, exercise 10.2"),
    (blocks.collective_matmul_gap, "max |blocks - whole|", "ratio", "ch. 10, exercises"),
    (blocks.tiled_elements, "dims up to whole tiles", "elements", "ch. 9"),
    (blocks.packed_offset, "tile, row group, column, row", "elements", "ch. 9"),
    (figures.measured_rate, "measured", "bytes/s", "ch. 12, figure"),
    (figures.published, "measured", "", "ch. 3, 9, 10"),
    # Arithmetic between them
    (sums.total, "a + b + ...", "", "arithmetic"),
    (sums.product, "a b ...", "", "arithmetic"),
    (sums.ratio, "a / b", "", "arithmetic"),
    (sums.difference, "a - b", "", "arithmetic"),
    (sums.larger, "max(a, b, ...)", "", "arithmetic"),
    (sums.smaller, "min(a, b, ...)", "", "arithmetic"),
    (sums.rounded, "so many digits", "", "arithmetic"),
    (sums.whole, "floor(a)", "", "arithmetic"),
    (sums.stored_bytes, "elements x dtype", "bytes", "ch. 1"),
    (sums.count, "members of a list", "", "arithmetic"),
)
"""Every rule by the name of its function, in the order of the book."""
