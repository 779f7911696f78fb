"""The list of the public benchmark InferenceX read: of each entry the servers of either phase, the
guesses a step and the most sequences, by what a row of the table states."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SOFTWARE = {"trt": "trtllm", "sglang": "sglang", "vllm": "vllm"}
PREFIXES = {
    "dsr1": "deepseek-v3",
    "gptoss": "gpt-oss-120b",
    "minimaxm2.5": "minimax-m2.5",
    "kimik2.5": "kimi-k2.5",
    "glm5": "glm-5",
    "qwen3.5": "qwen3.5-397b-a17b",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """One phase of a recipe."""

    workers: int
    devices: int
    expert: int
    by_batch: bool

    @property
    def tensor(self) -> int:
        return 1 if self.by_batch else self.devices

    @property
    def data(self) -> int:
        return self.devices if self.by_batch else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An entry of the benchmark's list; `guesses` is None where it guesses an unstated number.
    `running` are the most sequences of a server that decodes, None where they are not told."""

    image: str
    guesses: int | None
    prefill: Servers | None
    decode: Servers
    running: int | None = None


Key = tuple[str, str, str, str, int, int, int, bool]


def entries(entry: Mapping) -> Iterable[tuple[Key, Recipe]]:
    """One software on one chip: its recipes by lengths and concurrency."""
    software = SOFTWARE.get(entry["framework"].removeprefix("dynamo-"))
    model = PREFIXES.get(entry["model-prefix"])
    if software is None or model is None:
        return
    chip, image = entry["runner"].split("-")[0], str(entry["image"]).split(":")[-1]
    for lengths in entry.get("seq-len-configs", []):
        for space in lengths["search-space"]:
            recipe = Recipe(
                image=image,
                guesses=guesses_of(space, software, model),
                prefill=servers(space["prefill"]) if "prefill" in space else None,
                decode=servers(space.get("decode", space)),
                running=running_of(space),
            )
            for load in loads(space):
                apart = recipe.prefill is not None
                about = software, chip, entry["precision"], model
                yield (*about, lengths["isl"], lengths["osl"], load, apart), recipe


def servers(space: Mapping) -> Servers:
    return Servers(
        workers=space.get("num-worker", 1),
        devices=space["tp"],
        expert=space.get("ep", 1),
        by_batch=bool(space.get("dp-attn")),
    )


def loads(space: Mapping) -> list[int]:
    """Concurrencies: a list, or powers of two times the first."""
    if "conc-list" in space:
        return list(space["conc-list"])
    found = [space["conc-start"]]
    while found[-1] * 2 <= space["conc-end"]:
        found.append(found[-1] * 2)
    return found


def guesses_of(space: Mapping, software: str, model: str) -> int | None:
    """Guessed tokens per step: of the recipe's file, or of the scripts of single servers."""
    if space.get("spec-decoding", "none") == "none":
        return 0
    if software == "sglang":
        return 2 if model == "deepseek-v3" else 3
    if "prefill" not in space:
        return 1 if space.get("dp-attn") else 3
    settings = settings_of(space["prefill"]) + settings_of(space["decode"])
    told = re.findall(r"mtp(\d)", " ".join(settings))
    return int(told[-1]) if told else None


def running_of(space: Mapping) -> int | None:
    """The most sequences of a server that decodes, as TensorRT-LLM's recipes tell `max_batch_size`,
    which is of each part of the batch: in a setting, or in the name of the recipe's file."""
    settings = " ".join(
        settings_of(space.get("prefill", {})) + settings_of(space.get("decode", {}))
    )
    told = re.findall(r"(?:batch|DECODE_MAX_BATCH_SIZE=)(\d+)", settings)
    return int(told[-1]) * servers(space["decode"]).data if told else None


def settings_of(pool: Mapping) -> list[str]:
    """What a recipe sets of a pool."""
    return [str(s) for s in pool.get("additional-settings", ())]
