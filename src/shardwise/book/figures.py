"""The data behind the book's figures: series of (x, y) with labels and units, and their readings.

Every series is computed from the library's rules at the figure's own sizes and the book's chip
constants; `measured` figures carry the points read off the page, from `data/figures`. `readings`
are what the text reads off a figure: crossings, plateaus. Sizes are parameters, so that the same
figure can be had for another chip, width or slice.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import numpy as np

from shardwise.book.rules.mlp import MlpTimes, mlp_times
from shardwise.book.rules.training import x_opt
from shardwise.boundary import read_json
from shardwise.boundary.records import Record
from shardwise.errors import BadRequest, check_known, entry_of
from shardwise.hardware import Chip, load_chip, parse_slice, place
from shardwise.hardware.totals import link_both_ways, torus_axes
from shardwise.roofline.collectives import all_gather, all_to_all, ragged_all_to_all
from shardwise.roofline.crossover import crossover
from shardwise.work import Quantity

DATA = Path(__file__).parent / "data" / "figures"
POINTS = 64
"""Points per series, as the book's widget has (1.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series(Record):
    """One curve."""

    label: str
    """Its name."""
    x: tuple[float, ...]
    """Where its points are."""
    y: tuple[float, ...]
    """Their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The curves of one figure. `log` names the axes with a logarithmic scale; `notes` say where
    curves that should agree do not, by how much, and why."""

    id: str
    chapter: str
    title: str
    source: str
    x_label: str
    x_unit: str
    y_label: str
    y_unit: str
    log: str
    series: tuple[Series, ...]
    readings: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BookTorus:
    """A slice with all axes of its chip's torus and the MLP on it; by default the book's of ch. 5,
    a cube of v5p."""

    chips: int = 4096
    d_model: int = 8192
    d_ff: int = 32768
    chip: str | Chip = "v5p"

    @property
    def hardware(self) -> Chip:
        """The chip: of a name the one with the book's constants."""
        if isinstance(self.chip, Chip):
            return self.chip
        return load_chip(self.chip, constants="book")

    @property
    def axes(self) -> int:
        """Physical axes of the chip's torus."""
        return torus_axes(self.hardware)

    def times(self, batch_tokens, fsdp, tensor, axes_x=1, axes_y=1) -> MlpTimes:
        """Forward times of one layer with the book's constants."""
        chip = self.hardware
        return mlp_times(
            batch_tokens=batch_tokens,
            d_model=self.d_model,
            d_ff=self.d_ff,
            peak_flops=chip.peak("bf16"),
            bandwidth=link_both_ways(chip),
            fsdp=fsdp,
            tensor=tensor,
            axes_x=axes_x,
            axes_y=axes_y,
        )

    def optimal(self, batch_tokens) -> MlpTimes:
        """The same on the mesh of X_opt, one physical axis for tensor and the others for FSDP."""
        axes = self.axes - 1
        x = np.clip(x_opt(batch_tokens, self.d_ff, self.chips, axes), 1, self.chips)
        return self.times(batch_tokens, x, self.chips / x, axes, 1)


class FigureAxes(TypedDict):
    """What a figure's axes are called, and which are logarithmic."""

    x_label: str
    x_unit: str
    y_label: str
    y_unit: str
    log: str


PER_LAYER: FigureAxes = {
    "x_label": "batch",
    "x_unit": "tokens",
    "y_label": "time per layer (forward)",
    "y_unit": "s",
    "log": "xy",
}
"""Axes of the figures of a layer's seconds against the batch."""
CUBE, RATIOS = BookTorus(), BookTorus(chips=64, d_ff=30000)
"""The slices of the figures of ch. 5: 16x16x16, and 4x4x4 where ratios are drawn."""


def ratio_curves(torus: BookTorus = RATIOS) -> Figure:
    """T_math / T_comms against tokens per chip of tensor, FSDP and mixed sharding on a torus.

    Tensor and FSDP alone use all of its axes, the mix one for tensor and the others for FSDP, at
    X_opt.
    """
    per_chip = _logspace(10, 10_000)
    n, axes = torus.chips, torus.axes

    def mixed(b):
        return torus.optimal(b * n).ratio()

    def fsdp(b):
        return torus.times(b * n, n, 1, axes).ratio()

    def tensor(b):
        return torus.times(b * n, 1, n, 1, axes).ratio()

    curves = {"tensor": tensor, "FSDP": fsdp, "FSDP x tensor": mixed}
    return Figure(
        id="fig.5.ratio_curves",
        chapter="5",
        title=f"FLOPs over communication on {n} chips, F = {torus.d_ff:,}",
        source="ch. 5.1.4, figure of the ratios on 4x4x4",
        x_label="tokens per chip",
        x_unit="tokens",
        y_label="T_math / T_comms",
        y_unit="",
        log="xy",
        series=tuple(_curve(label, per_chip, f) for label, f in curves.items()),
        readings={
            "mixed_tokens_per_chip": _crossing(mixed),
            "fsdp_tokens_per_chip": _crossing(fsdp),
            "tensor_ratio": float(tensor(1.0)),
        },
    )


def math_comms(torus: BookTorus = CUBE) -> Figure:
    """Time per layer against the batch: math and each strategy's communication.

    Data parallelism over all axes; the mixes keep one for tensor and the others for FSDP. The best
    mix at every batch stands in both ways to add up its two communications (errata 0.1).
    """
    n, batch = torus.chips, _logspace(1e4, 1e7)
    meshes = {f"{n}-way DP": (n, 1, torus.axes)}
    mixes = (y for y in (4, 8) if n > y and n % y == 0)
    meshes |= {f"{n // y} x {y}": (n // y, y, torus.axes - 1) for y in mixes}
    series = [_curve("math", batch, lambda b: torus.times(b, n, 1).math)]
    readings = {}
    for label, (x, y, axes) in meshes.items():
        series.append(
            _curve(label, batch, lambda b, x=x, y=y, axes=axes: torus.times(b, x, y, axes).comms())
        )
        readings[f"flat_seconds.{label}"] = float(torus.times(1, x, y, axes).weights)
        found = _threshold(torus, x, y, axes, 1)
        if found is not None:
            readings[f"threshold_tokens.{label}"] = found
    for combine in ("max", "sum"):

        def best(b, combine=combine):
            return torus.optimal(b).comms(combine)  # type: ignore[arg-type]

        series.append(_curve(f"X_opt, {combine}", batch, best))
        readings[f"threshold_tokens.X_opt, {combine}"] = crossover(
            lambda b: float(torus.times(b, n, 1).math), lambda b: float(best(b)), 1.0, 1e15
        )
    return Figure(
        id="fig.5.math_comms",
        chapter="5",
        title=f"Math and communication per layer on {n:,} chips",
        source="ch. 5.1.4, figure of math and communication on 16x16x16",
        **PER_LAYER,
        series=tuple(series),
        readings=readings,
    )


def widget_axes(tensor: int, torus: BookTorus = CUBE) -> tuple[int, int]:
    """Physical axes (M_X, M_Y) of the widget's splits of a torus of equal sides: tensor takes a
    whole axis from side = chips^(1/axes) on for itself, two from side^2; what it leaves is FSDP's.
    For 16x16x16: M_X = 3, 2, 1 from TP = 1, 16, 256; M_Y = 1, 2, 3 from TP = 1, 256, 4096."""
    axes, whole = torus.axes, 0
    # side^(whole + 1) <= tensor, in whole numbers
    while whole < axes and torus.chips ** (whole + 1) <= tensor**axes:
        whole += 1
    return max(axes - whole, 1), max(whole, 1)


def splits(torus: BookTorus = CUBE) -> tuple[tuple[int, int], ...]:
    """The widget's slider: every FSDP x tensor split into powers of two."""
    return tuple((torus.chips >> k, 1 << k) for k in range(torus.chips.bit_length()))


def chosen_splits(tensor: Sequence[int], torus: BookTorus) -> tuple[tuple[int, int], ...]:
    """The splits with these tensor degrees, as positions of the slider; all where none is named.

    Raises BadRequest for a degree that is none of them.
    """
    every = splits(torus)
    for degree in tensor:
        if degree not in [y for _, y in every]:
            known = ", ".join(str(y) for _, y in every)
            raise BadRequest(f"tensor is {degree}; on {torus.chips} chips it is one of {known}")
    return tuple(pair for pair in every if not tensor or pair[1] in tensor)


def interactive(torus: BookTorus = CUBE, tensor: Sequence[int] = ()) -> Figure:
    """Math and communication for every split of the widget's slider, or for those with these
    `tensor` degrees."""
    batch = _logspace(10, 1e8)
    series = [_curve("math", batch, lambda b: torus.times(b, torus.chips, 1).math)]
    flat = {}
    for x, y in chosen_splits(tensor, torus):
        axes = widget_axes(y, torus)
        series.append(
            _curve(
                f"{x}x{y}",
                batch,
                lambda b, x=x, y=y, axes=axes: torus.times(b, x, y, *axes).comms(),
            )
        )
        flat[f"flat_seconds.{x}x{y}"] = float(torus.times(1, x, y, *axes).weights)
    return _widget("fig.5.interactive", "communication of every split", series, flat)


def interactive_tensor(torus: BookTorus = CUBE, tensor: Sequence[int] = ()) -> Figure:
    """The widget's other half: the tensor axis's communication, which grows with the batch."""
    batch = _logspace(10, 1e8)
    series, at_end = [], {}
    for x, y in (pair for pair in chosen_splits(tensor, torus) if pair[1] > 1):
        axes = widget_axes(y, torus)

        def seconds(b, x=x, y=y, axes=axes):
            return torus.times(b, x, y, *axes).activations

        series.append(_curve(f"{x}x{y}", batch, seconds))
        at_end[f"seconds_at_1e8.{x}x{y}"] = float(seconds(1e8))
    return _widget("fig.5.interactive.tp", "the tensor axis alone", series, at_end)


def interactive_threshold(torus: BookTorus = CUBE) -> Figure:
    """The widget's label: the batch from which a split is compute-bound, where there is one."""
    found = {y: _threshold(torus, x, y, *widget_axes(y, torus)) for x, y in splits(torus)}
    bound = {y: b for y, b in found.items() if b is not None}
    return Figure(
        id="fig.5.interactive.threshold",
        chapter="5",
        title="Least compute-bound batch of every split",
        source="ch. 5.1.4, interactive figure (training-roofline)",
        x_label="tensor degree",
        x_unit="chips",
        y_label="least compute-bound batch",
        y_unit="tokens",
        log="xy",
        series=(Series(label="threshold", x=tuple(map(float, bound)), y=tuple(bound.values())),),
        readings={f"threshold_tokens.{torus.chips // y}x{y}": b for y, b in bound.items()},
    )


def _widget(
    figure_id: str, what: str, series: list[Series], readings: Mapping[str, float]
) -> Figure:
    return Figure(
        id=figure_id,
        chapter="5",
        title=f"MLP roofline of a torus of TPUs: {what}",
        source="ch. 5.1.4, interactive figure (training-roofline)",
        **PER_LAYER,
        series=tuple(series),
        readings=readings,
    )


def sharded_gather(d_model: int = 8192, d_ff: int = 32768, nodes: int = 32) -> Figure:
    """A gather over the outer axis of a scalable unit against the inner axis Y (pop quiz 3).

    Without the (M-1)/M, as the book draws it; at Y = 256 nothing is left to gather.
    """
    piece = parse_slice(f"{nodes}*h100:8", lambda n: load_chip(n, constants="book"))
    degrees = [1 << k for k in range(piece.chips.bit_length() - 1)]

    def seconds(y: int) -> float:
        links = place(piece, {"X": piece.chips // y, "Y": y}).axes["X"]
        return float(all_gather(2 * d_model * d_ff / y, [links], mode="asymptotic").bandwidth)

    times = [seconds(y) for y in degrees]
    return Figure(
        id="fig.gpu.sharded_gather",
        chapter="12",
        title="AllGather_X of bf16[D_X, F_Y] over one scalable unit",
        source="ch. 12, pop quiz 3",
        x_label="inner axis Y",
        x_unit="chips",
        y_label="time",
        y_unit="s",
        log="xy",
        series=(Series(label="gather", x=tuple(map(float, degrees)), y=tuple(times)),),
        readings={f"seconds.Y={y}": t for y, t in zip(degrees, times, strict=True)},
    )


def ragged(picks: int = 4, largest: int = 64) -> Figure:
    """The factor of a ragged all-to-all over its tokens' bytes, exact and approximate.

    K random picks among Z shards: (1 - ((Z-1)/Z)^K)(Z-1)/Z against min(K/Z, 1)(Z-1)/Z. Raises
    BadRequest where there are no shards to choose from.
    """
    if largest < 2:
        raise BadRequest(f"largest is {largest}; the curve begins at 2 shards: give 2 or more")
    piece = parse_slice("gb200:72", lambda n: load_chip(n, constants="book"))
    chip_oneway = piece.chip.network.chip_oneway  # type: ignore[union-attr]
    shards = np.arange(2, largest + 1)
    exact, approximate = [], []
    for z in shards.tolist():
        links = [place(piece, {"Z": z}, box=(z,)).axes["Z"]]
        # The dense all-to-all moves Z copies of the tokens; so much takes 1 s over one chip's link.
        size = float(z * chip_oneway)
        dense = {m: all_to_all(size, links, mode=m).bandwidth for m in ("exact", "asymptotic")}
        true = ragged_all_to_all(size, links, fan_out=picks).bandwidth
        rough = ragged_all_to_all(size, links, fan_out=picks, mode="asymptotic").bandwidth
        exact.append(float(true))
        approximate.append(float(dense["exact"] * rough / dense["asymptotic"]))
    x = tuple(map(float, shards))
    return Figure(
        id="fig.gpu.ragged",
        chapter="12",
        title=f"Ragged all-to-all, K = {picks}",
        source="ch. 12, appendix B, figure on ragged all-to-alls",
        x_label="shards Z",
        x_unit="chips",
        y_label="cost over that of sending every token to every shard",
        y_unit="",
        log="",
        series=(
            Series(label="exact", x=x, y=tuple(exact)),
            Series(label="approximation", x=x, y=tuple(approximate)),
        ),
        readings={"exact_peak": max(exact), "approximation_peak": max(approximate)},
    )


def all_reduce_measured() -> Figure:
    """Measured bus bandwidth of an all-reduce over 8 H100 without SHARP, as read off the figure."""
    points = measured("all_reduce_8xh100")
    return Figure(
        id="fig.gpu.ar_curve",
        chapter="12",
        title="AllReduce bus bandwidth over 8 H100, no in-network reduction (measured)",
        source="ch. 12, figure of AllReduce throughput; points read off the page",
        x_label="message",
        x_unit="bytes",
        y_label="bus bandwidth",
        y_unit="bytes/s",
        log="x",
        series=(Series(label="measured", x=tuple(points), y=tuple(points.values())),),
        readings={f"bytes_per_second.{size:g}": rate for size, rate in points.items()},
    )


def measured(name: str) -> dict[float, float]:
    """Points of a measured figure: x to y. Raises BadRequest for one that there is not."""
    check_known("measured figure", name, [path.stem for path in sorted(DATA.glob("*.csv"))])
    with (DATA / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if row and not row[0].startswith("#")]
    return {float(x): float(y) for x, y in rows[1:]}


def split_weights_seconds(
    fsdp: Sequence[int], tensor: Sequence[int], d_model: int, d_ff: int, chip: Chip
) -> list[float]:
    """Seconds per layer that moving the weights takes, for FSDP x tensor splits as the widget of
    ch. 5.1.4 lays them on the axes of a torus with equal sides; no batch changes it."""
    return [
        float(torus.times(1.0, x, y, *widget_axes(y, torus)).weights)
        for x, y, torus in _splits_on(fsdp, tensor, d_model, d_ff, chip)
    ]


def split_activations_seconds(
    batch_tokens: float, fsdp: Sequence[int], tensor: Sequence[int], d_model: int, chip: Chip
) -> list[float]:
    """Seconds per layer that the tensor axis's communication takes for such splits."""
    return [
        float(torus.times(batch_tokens, x, y, *widget_axes(y, torus)).activations)
        for x, y, torus in _splits_on(fsdp, tensor, d_model, 1, chip)
    ]


def split_thresholds(
    fsdp: Sequence[int], tensor: Sequence[int], d_model: int, d_ff: int, chip: Chip
) -> list[float]:
    """Tokens from which such splits are compute-bound; infinite where communication takes longer
    at every batch."""
    found = (
        _threshold(torus, x, y, *widget_axes(y, torus))
        for x, y, torus in _splits_on(fsdp, tensor, d_model, d_ff, chip)
    )
    return [np.inf if at is None else at for at in found]


def _splits_on(fsdp, tensor, d_model, d_ff, chip):
    for x, y in zip(fsdp, tensor, strict=True):
        yield x, y, BookTorus(chips=x * y, d_model=d_model, d_ff=d_ff, chip=chip)


def ratio_readings(chips: int, d_ff: int, d_model: int = 8192, chip: str | Chip = "v5p"):
    """What the text reads off the curves of T_math / T_comms (`ratio_curves`): tokens per chip at
    which the mix and FSDP cross 1, and the plateau of tensor parallelism."""
    return ratio_curves(BookTorus(chips=chips, d_ff=d_ff, d_model=d_model, chip=chip)).readings


def measured_rate(name: str, sizes: Sequence[float]) -> list[float]:
    """Measured bytes/s at message sizes that a figure has points for.

    Raises BadRequest for a size without a point.
    """
    points = measured(name)
    for size in sizes:
        if size not in points:
            known = ", ".join(f"{x:g}" for x in points)
            raise BadRequest(f"size {size:g} has no measured point in '{name}'; there are {known}")
    return [points[size] for size in sizes]


def published(name: str) -> Mapping[str, float]:
    """Numbers that the book measured or read off a profile and no formula gives, by quantity.

    Raises BadRequest with the nearest name for one that is not kept.
    """
    kept = read_json(DATA / "published.json", "the published measurements")
    return entry_of("published measurement", name, kept)


def _logspace(low: float, high: float) -> np.ndarray:
    return np.geomspace(low, high, POINTS)


def _curve(label: str, x: np.ndarray, f: Callable) -> Series:
    y = np.broadcast_to(np.asarray(f(x), float), x.shape)
    return Series(label=label, x=tuple(x.tolist()), y=tuple(y.tolist()))


def _crossing(ratio: Callable[[float], Quantity]) -> float:
    """Tokens per chip at which a rising ratio reaches 1."""
    return crossover(lambda b: float(ratio(b)), lambda _: 1.0, 1.0, 1e7)


def _threshold(torus: BookTorus, x: int, y: int, axes_x: int, axes_y: int) -> float | None:
    """Batch in tokens from which a split is compute-bound; None where communication always wins."""

    def times(b: float) -> MlpTimes:
        return torus.times(b, x, y, axes_x, axes_y)

    try:
        return crossover(
            lambda b: float(times(b).math), lambda b: float(times(b).comms()), 1.0, 1e15
        )
    except BadRequest:
        return None
