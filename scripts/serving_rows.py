#!/usr/bin/env python3
"""Write the table of serving runs that the package ships, from a collected table and its sources.

    scripts/serving_rows.py [--clones FOLDER]

`fit/serving_collected.csv.gz` has one metric a row (`evidence/serving/notation.py`). What its rows
leave out is read here, once, from two public repositories at the commits of `PUBLIC`, and stands in
columns afterwards; `converted_from` says where each is from. The clones are made in a temporary
folder, or taken from FOLDER/OWNER+NAME.

- ai-dynamo/aiconfigurator has the table that most rows were collected from: the number of servers
  of either phase.
- SemiAnalysisAI/InferenceX is the benchmark that made most of them: of every day's
  nvidia-master.yaml the entries of the same software, chip, precision, lengths and concurrency. An
  entry tells degrees, servers and guesses per step; the benchmark's scripts tell
  how many sequences a server that decodes takes at most (`max_num_seqs` of two pools),
  that lengths lie between 0.8 and 1 of the stated ones, the cache's dtype, three guesses (two by
  SGLang on DeepSeek, one by TensorRT-LLM with attention cut by the batch) on single servers, and
  how many steps SGLang takes from one look at its queue to the next.

A row that several entries fit with different guesses is told by its copy in a dump that has none,
or, where two measured figures are more than 1.2 apart, the faster is the one that guesses; a row
that still fits several is left out, and its reason is counted (and stands in
docs/lab/fit_serving.md).
"""

import argparse
import csv
import io
import json
import re
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml
from fit.benchmark_flags import benchmark_columns
from fit.benchmark_recipes import Key, Recipe, Servers, entries
from fit.rates import read_csv

from shardwise.errors import BadRequest
from shardwise.evidence.serving import notation
from shardwise.evidence.serving.runs import (
    EXPLICIT,
    LATER,
    PUBLISHED_SERVING,
    run_of,
    serving_runs,
)
from shardwise.work import grouped

Row = dict[str, str]
REASONS = PUBLISHED_SERVING.with_name("serving_left_out.json")
COLLECTED = Path(__file__).parent / "fit" / "serving_collected.csv.gz"
AICONFIGURATOR, INFERENCEX = "ai-dynamo/aiconfigurator", "SemiAnalysisAI/InferenceX"
PUBLIC = {
    AICONFIGURATOR: "095f58a51c4ca8e61b66ec108d86f223f8d559ce",
    INFERENCEX: "843c6254ff69b567f772f6a5fd97675af3d04431",
}
"""Commits, which are checksums of all that is read."""
SAMPLE = "aic-core/src/aiconfigurator_core/systems/silicon_sample.csv"
MASTER = ".github/configs/nvidia-master.yaml"
LAST_DAY = "2026-05-01"
GUESSING = ("deepseek-v3", "glm-5", "qwen3.5-397b-a17b")
"""Models that the benchmark also serves with guessed tokens."""

SHORTEST = "0.8"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clones", type=Path, metavar="FOLDER")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as fresh:
        folder = asked.clones or Path(fresh)
        stated, found = sample(clone(AICONFIGURATOR, folder)), recipes(clone(INFERENCEX, folder))
    rows, reasons = converted(read_csv(COLLECTED), stated, found)
    rows, reasons[COPY] = told_once(rows)
    kept = serving_runs(rows)
    reasons.update(kept.left_out)
    wanted = {run.id for run in kept.runs}
    write(rows, wanted)
    REASONS.write_text(json.dumps(dict(reasons.most_common()), indent=1) + "\n", encoding="utf-8")
    print(f"{len(wanted)} runs")
    for reason, number in reasons.most_common():
        print(f"{number:6} {reason}")


def clone(name: str, folder: Path) -> Path:
    """A repository without the files of its commits, which are fetched as they are read."""
    path = folder / name.replace("/", "+")
    if not path.exists():
        words = ("clone", "--quiet", "--bare", "--filter=blob:none")
        git(folder, *words, f"https://github.com/{name}", str(path))
    return path


def sample(repository: Path) -> dict[str, Row]:
    """The published table, by its ids."""
    text = git(repository, "show", f"{PUBLIC[AICONFIGURATOR]}:{SAMPLE}")
    return {row["id"]: row for row in csv.DictReader(io.StringIO(text))}


def write(rows: Iterable[Row], wanted: set[str]) -> None:
    """The first row of every run, as the package ships it."""
    left = set(wanted)
    with PUBLISHED_SERVING.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(EXPLICIT), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            try:
                name = run_of(row).id
            except BadRequest:
                continue
            if name in left:
                left.remove(name)
                writer.writerow({column: row[column] for column in EXPLICIT})


def recipes(repository: Path) -> dict[Key, set[Recipe]]:
    """All entries that the list ever had, by what a row states."""
    days: dict[str, str] = {}
    log = ("log", "--format=%h %ad", "--date=short", PUBLIC[INFERENCEX], "--", MASTER)
    for line in git(repository, *log).split("\n"):
        commit, _, day = line.partition(" ")
        if commit and day <= LAST_DAY:
            days.setdefault(day, commit)
    found: dict[Key, set[Recipe]] = defaultdict(set)
    for commit in days.values():
        text = git(repository, "show", f"{commit}:{MASTER}")
        for entry in yaml.load(text, Loader=yaml.CSafeLoader).values():
            for key, recipe in entries(entry):
                found[key].add(recipe)
    return found


def git(repository: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), *words], capture_output=True, text=True, check=True
    )
    return done.stdout


def told_running(row: Row, fits: Iterable[Recipe]) -> Row:
    """`max_num_seqs` of a row of two pools, where its recipes have one value."""
    if row["workers"] in ("", "0"):
        return {}
    names = ("drafts", "workers", "tensor", "data")
    pools = ("prefill_workers", "prefill_tensor", "prefill_data")
    mine = [int(row[name] or 0) for name in (*names, *pools)]
    found = {recipe.running for recipe in fits if placed(recipe) == mine}
    told = found.pop() if len(found) == 1 else None
    return {"max_num_seqs": str(told)} if told else {}


def placed(recipe: Recipe) -> list[int | None]:
    """The guesses of a recipe, and the servers and degrees of its pools."""
    pools = [pool for pool in (recipe.decode, recipe.prefill) if pool is not None]
    return [recipe.guesses, *(n for p in pools for n in (p.workers, p.tensor, p.data))]


def converted(
    rows: Sequence[Row], stated: Mapping[str, Row], found: Mapping[Key, set[Recipe]]
) -> tuple[list[Row], Counter[str]]:
    """Every configuration with its columns, and why how many are not."""
    reasons: Counter[str] = Counter()
    told: list[tuple[Row, str, set[Recipe]]] = []
    for group in grouped(rows, notation.configuration).values():
        mark = re.search(r"id=(\S+)", group[0]["notes"])
        name = mark.group(1) if mark else ""
        try:
            told.append(columns(group, name, stated.get(name), found))
        except BadRequest as error:
            reasons[str(error)] += 1
    dumped = {figures(row): row for row, name, _ in told if is_dump(stated.get(name))}
    measured: dict[tuple[str, ...], set[float]] = defaultdict(set)
    for row, _, _ in told:
        measured[same(row)].add(float(row["tpot_ms"]))
    done: list[Row] = []
    for row, name, fits in told:
        try:
            source = stated.get(name)
            if not is_dump(source):
                settle(row, fits, dumped.get(figures(row)), measured[same(row)])
            row |= told_running(row, fits)
            told_of = origin(source) if source else ""
            done.append(row | benchmark_columns(row, told_of, is_benchmark(source)))
        except BadRequest as error:
            reasons[str(error)] += 1
    return done, reasons


FROM_COPY = "its copy in the later dump"
COPY = "a copy of a run whose recipe says more"


def told_once(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """The rows without those that no recipe told and that are one which a recipe told: by software,
    model, chip, lengths, concurrency and both times. Their guesses and cache are defaults, not
    what ran."""
    guessed = ("", FROM_COPY)
    told = {measured_as(row) for row in rows if row["converted_from"] not in guessed}
    kept = [r for r in rows if r["converted_from"] not in guessed or measured_as(r) not in told]
    return kept, len(rows) - len(kept)


def measured_as(row: Row) -> tuple[str, ...]:
    """A run by what was measured and how it was asked for, to three digits, as tables round."""
    times = (f"{float(row[n] or 0):.3g}" for n in ("ttft_ms", "tpot_ms"))
    return (*figures(row)[:-1], row["release"], row["tensor"], row["data"], *times)


def is_dump(row: Row | None) -> bool:
    """Whether a row is of the dump that holds no run with guesses."""
    return row is not None and "db-dump" in row["silicon_data_source"]


def is_benchmark(row: Row | None) -> bool:
    """Whether a row is of the public benchmark, told by the dump or by a day's file."""
    return row is not None and (is_dump(row) or "source_file=20" in origin(row))


def figures(row: Row) -> tuple[str, ...]:
    names = ("engine", "model", "hardware", "weights", "concurrency")
    lengths = (row["input_length"], row["output_length"])
    return (*(row[n] for n in names), *lengths, f"{float(row['tpot_ms']):.2f}")


def same(row: Row) -> tuple[str, ...]:
    names = ("release", "tensor", "data", "expert", "workers")
    return (*figures(row)[:-1], *(row[n] for n in names))


def columns(
    group: Sequence[Row], name: str, stated: Row | None, found: Mapping[Key, set[Recipe]]
) -> tuple[Row, str, set[Recipe]]:
    """One configuration, with what its source states, and the recipes that fit it."""
    first = dict(group[0])
    apart = first["parallelism"].startswith("disagg")
    numbered = bool(stated and stated["decode_num_workers"])
    if apart and not numbered:
        first["parallelism"] = "TP1"  # told by a recipe or a copy
    row = notation.explicit([first, *group[1:]])
    benchmark = is_benchmark(stated)
    fits = recipes_of(row, stated, found, apart) if benchmark and stated else set()
    if apart and not numbered:
        row |= {"workers": "?", "tensor": "?", "data": "?", "expert": "?"}
    elif apart and stated:
        row |= stated_servers(stated)
    else:
        decodes = {recipe.decode for recipe in fits}
        if len(decodes) == 1:
            row |= degrees(decodes.pop()) | {"converted_from": "the recipe"}
    row["shortest"] = SHORTEST if benchmark else "1"
    row["kv"] = row["kv"] or cache_dtype(row, group[0]["model"], benchmark)
    if benchmark and not apart:
        row["queue_interval"] = queue_interval(row)
    row |= dict.fromkeys(LATER[1:], "")
    return row, name, fits


def origin(stated: Row) -> str:
    return stated["silicon_data_source"]


def stated_servers(stated: Row) -> Row:
    """Servers of either phase as the sample states them."""

    def of(phase: str, what: str) -> str:
        return stated[f"{phase}_{what}"] or "1"

    return {
        "prefill_workers": of("prefill", "num_workers"),
        "prefill_tensor": of("prefill", "tp_size"),
        "prefill_data": of("prefill", "attention_dp_size"),
        "workers": of("decode", "num_workers"),
        "tensor": of("decode", "tp_size"),
        "data": of("decode", "attention_dp_size"),
        "expert": of("decode", "moe_ep_size"),
        "converted_from": "the sample states the servers",
    }


def degrees(server: Servers) -> Row:
    return {
        "tensor": str(server.tensor),
        "data": str(server.data),
        "expert": str(server.expert),
    }


def recipes_of(row: Row, stated: Row, found: Mapping[Key, set[Recipe]], apart: bool) -> set[Recipe]:
    """Recipes of a row's software, chip, load and degrees; of its own image where one is."""
    load = re.search(r"concurrency=(\d+)", origin(stated))
    chip, model = row["hardware"].split("_")[0], row["model"]
    lengths = int(row["input_length"]), int(row["output_length"])
    key = (row["engine"], chip, row["weights"], model, *lengths, int(load[1]) if load else 0, apart)
    fits = {r for r in found.get(key, set()) if fit(r, row, stated)}
    tag = re.search(r"(?:image=\S+|nvcr\S+|lmsysorg\S+|vllm/\S+)", origin(stated))
    own = {r for r in fits if tag and tag.group(0).split(":")[-1] == r.image}
    return own or fits


def fit(recipe: Recipe, row: Row, stated: Row) -> bool:
    """Whether a recipe has the degrees that a row states."""

    def product(*names: str) -> int:
        value = 1
        for name in names:
            value *= int(stated[name] or 1)
        return value

    if recipe.prefill is None:
        wanted = int(row["tensor"]) * int(row["data"])
        return recipe.decode.devices == wanted and recipe.decode.expert == int(row["expert"])
    prefill = product("prefill_tp_size", "prefill_attention_dp_size")
    decode = product("decode_tp_size", "decode_attention_dp_size")
    if prefill == decode and (decode > 16 or decode == 12):  # all devices, said twice
        pools = (recipe.prefill, recipe.decode)
        return sum(pool.workers * pool.devices for pool in pools) == decode
    return (recipe.prefill.devices, recipe.decode.devices) == (prefill, decode)


def settle(row: Row, fits: set[Recipe], copy: Row | None, measured: set[float]) -> None:
    """Servers and guesses of a row that several recipes may fit."""
    if copy is not None:
        names = ("tensor", "data", "expert", "workers")
        pools = ("prefill_workers", "prefill_tensor", "prefill_data")
        row |= {n: copy[n] for n in (*names, *pools)}
        row["converted_from"] = FROM_COPY
        return
    apart = row["workers"] == "?"
    if not apart and row["model"] not in GUESSING:
        return
    if apart and not fits:
        raise BadRequest("disaggregated, without the number of servers, and no recipe fits")
    if len({recipe.guesses != 0 for recipe in fits}) > 1:
        fits = told_apart(float(row["tpot_ms"]), fits, measured)
    found = {(r.guesses, r.prefill, r.decode) if apart else (r.guesses,) for r in fits}
    if len(found) > 1:
        raise BadRequest("several recipes fit the row")
    if not fits:
        return
    recipe = next(iter(fits))
    if recipe.guesses is None:
        raise BadRequest("guesses of an unstated number")
    row["drafts"] = str(recipe.guesses)
    if apart and recipe.prefill is not None:
        row |= degrees(recipe.decode) | {
            "workers": str(recipe.decode.workers),
            "prefill_workers": str(recipe.prefill.workers),
            "prefill_tensor": str(recipe.prefill.tensor),
            "prefill_data": str(recipe.prefill.data),
            "converted_from": "the recipe",
        }


def told_apart(tpot: float, fits: set[Recipe], measured: set[float]) -> set[Recipe]:
    """The recipes with guesses for the faster of two figures, those without for the slower."""
    if max(measured) < 1.2 * min(measured):
        raise BadRequest("with or without guesses: nothing tells")
    if min(measured) * 1.1 < tpot < max(measured) * 0.9:
        raise BadRequest("with or without guesses: nothing tells")
    fast = tpot <= min(measured) * 1.1
    return {recipe for recipe in fits if (recipe.guesses != 0) == fast}


def cache_dtype(row: Row, checkpoint: str, benchmark: bool) -> str:
    """The cache's dtype by the benchmark's scripts, else what the software takes by default: fp8
    for a checkpoint of NVIDIA's that says so, in TensorRT-LLM."""
    engine, chip, weights = row["engine"], row["hardware"], row["weights"]
    blackwell = any(name in chip for name in ("b200", "b300"))
    if benchmark:
        fp8 = {
            "deepseek-v3": engine != "sglang" or not chip.startswith("h"),
            "gpt-oss-120b": blackwell,
            "minimax-m2.5": blackwell and row["release"].startswith("0.19"),
            "qwen3.5-397b-a17b": weights != "bf16",
            "glm-5": weights == "fp8" and blackwell,
            "kimi-k2.5": engine == "trtllm",
        }
        if row["model"] in fp8:
            return "fp8" if fp8[row["model"]] else "bf16"
    by_default = benchmark or checkpoint.startswith("nvidia/")
    return notation.kv_of(engine, weights) if by_default else "bf16"


def queue_interval(row: Row) -> str:
    """`--scheduler-recv-interval` of SGLang in the benchmark's scripts for single servers: on
    Blackwell 30 from 16 requests on and 10 below, or 10 for all; on Hopper none."""
    model, weights, chip = row["model"], row["weights"], row["hardware"].split("_")[0]
    if row["engine"] != "sglang" or chip not in ("b200", "b300"):
        return ""
    if model == "glm-5":
        return "10" if weights == "fp4" else ""
    always = (model, weights, row["tensor"]) == ("deepseek-v3", "fp8", "4")
    if always or (model, weights, chip) == ("qwen3.5-397b-a17b", "fp8", "b300"):
        return "10"
    return "30" if int(row["concurrency"]) >= 16 else "10"


if __name__ == "__main__":
    main()
