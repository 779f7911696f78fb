"""What the exporters of inference servers share: checks of a plan, and flags to and from text."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.export.flags import Flags, words_of
from shardwise.planner.export.notes import Fields, number, refused
from shardwise.planner.serve.server import fewest_kv_heads, server_of
from shardwise.plans import ServePlan
from shardwise.plans.serve import CHECKPOINT

MODEL = '"${MODEL:?the checkpoint: a folder or a Hugging Face id}"'
ROLE = '"${ROLE:?prefill or decode}"'
VARIABLES = (MODEL, ROLE)
"""Words that the user's shell fills in; every other one is quoted."""

_NEITHER: Mapping[str, Any] = {
    "swap": False,
    "host_cache_share": 0.0,
    "max_waiting": 0,
    "refuse_late": False,
    "guess_cost": 0.0,
    "admission": "optimistic",
}
"""Choices of `scheduling` that neither server has a flag for that means the same."""


def check_plan(target: str, plan: ServePlan, cfg: ModelConfig) -> None:
    """Raise BadRequest for a choice that neither vLLM nor SGLang runs as the plan says."""
    for name, only in _NEITHER.items():
        value = getattr(plan.scheduling, name)
        if value != only:
            raise refused(target, f"scheduling.{name}", value, f"it runs {only!r} only")
    if plan.prefill is not None:
        raise refused(
            target,
            "prefill",
            plan.prefill.slice,
            "its pools are started apart; export each as a plan of its own",
        )
    if plan.degree("fsdp") > 1:
        raise refused(target, "mesh", dict(plan.mesh), "it cuts no weights along D that lie still")
    if plan.degree("tensor") > fewest_kv_heads(cfg) and plan.kv_sharding != "heads":
        raise refused(
            target, "kv_sharding", plan.kv_sharding, "it replicates KV heads beyond their number"
        )
    if plan.degree("expert") > 1 and plan.degree("data") * plan.degree("tensor") > 1:
        raise refused(
            target, "mesh", dict(plan.mesh), "with experts cut it cuts them over all devices"
        )
    if plan.dtypes.weights not in (CHECKPOINT, "fp8", "bf16"):
        raise refused(
            target, "dtypes.weights", plan.dtypes.weights, "it quantizes to fp8 while loading"
        )
    if plan.dtypes.kv not in ("bf16", "fp8"):
        raise refused(target, "dtypes.kv", plan.dtypes.kv, "its cache is bf16 or fp8")
    if plan.dtypes.activations not in ("bf16", "f16"):
        raise refused(target, "dtypes.activations", plan.dtypes.activations, "it is bf16 or f16")


LENGTHS = {"vllm": "--max-model-len", "sglang": "--context-length"}
"""The flag for the longest sequence; without it a server takes the model's longest, and vLLM does
not start where its cache cannot hold that."""

_ROUND = 1024


def longest(plan: ServePlan, cfg: ModelConfig, piece: Slice) -> int:
    """Tokens of the longest sequence to allow, 0 where the cache of a rank holds the model's.

    Half of the cache, as the server counts its own otherwise than we do; the plan's sequences in
    any case; in steps of 1,024 tokens.
    """
    server, share = server_of(plan, cfg, piece), plan.scheduling.memory_share
    counted = float(server.cache_tokens(server.shape(float(plan.batch)), share))
    cache = counted / (plan.degree("data") * plan.degree("expert"))
    most = cfg.max_context or 0
    if cache >= most:
        return 0
    asked = -(-(plan.input_length + plan.output_length) // _ROUND) * _ROUND
    return max(asked, int(cache / 2) // _ROUND * _ROUND)


def check_length(target: str, text: str, plan: ServePlan) -> None:
    """Raise BadRequest where the flags allow shorter sequences than the plan's."""
    match = re.search(rf"^[^#\n]*{LENGTHS[target]}=(\S+)", text, re.MULTILINE)
    asked = plan.input_length + plan.output_length
    if match and number(target, LENGTHS[target], match[1]) < asked:
        raise BadRequest(
            f"{target}: {LENGTHS[target]} is {match[1]}, but requests of the plan have {asked:,} "
            "tokens (input_length + output_length); raise it, or plan for shorter requests"
        )


def script(command: str, values: Mapping[str, Any]) -> str:
    """A shell script of one command, a flag to a line, every value but `VARIABLES` quoted."""
    words = [command]
    for flag, value in values.items():
        given = value if value in VARIABLES else shlex.quote(str(value))
        words.append(flag if value == "" else f"{flag}={given}")
    return "#!/usr/bin/env bash\n" + " \\\n  ".join(words) + "\n"


def flags_of(target: str, text: str, command: str, known: Sequence[str]) -> Flags:
    """The flags of a command. BadRequest where the command is not there, and for a flag that no
    plan says, so that none is lost unseen."""
    words = words_of(target, text)
    if command not in " ".join(words):
        raise BadRequest(f"{target}: no '{command}' in the text; give a script that has it")
    found: dict[str, str] = {}
    for word in words:
        match = re.fullmatch(r"(--[\w-]+)(?:=(.*))?", word, re.DOTALL)
        if match:
            found[match[1]] = match[2] or ""
    for flag in found:
        if flag not in known:
            raise BadRequest(
                f"{target}: a plan has no word for the flag {flag}; it reads {', '.join(known)}"
            )
    return Flags(target, found)


DTYPES = {"bf16": "bfloat16", "f16": "float16"}
"""What both servers call the dtypes of activations."""


def dtype_fields(flags: Flags, caches: Mapping[str, str]) -> Fields:
    """Fields of `dtypes` that the flags say; `caches` has the server's words for the cache's."""
    return {
        "dtypes.weights": flags.word("--quantization", {"fp8": "fp8", CHECKPOINT: ""}),
        "dtypes.kv": flags.word("--kv-cache-dtype", caches, "auto"),
        "dtypes.activations": flags.word("--dtype", DTYPES, "bfloat16"),
    }
