"""Megatron-LM's shorter and former spellings, as the arguments of today that say the same.

What each stands for is validate_args of megatron/training/arguments.py (megatron-core 0.19.2), and
for those that it only turns away, what they did before: `--checkpoint-activations` (until 2022)
recomputed whole layers, `--fp8-hybrid` (until 2023) was fp8 of both formats.
"""

from collections.abc import Mapping

FORMER: Mapping[str, Mapping[str, str | None]] = {
    "--recompute-activations": {"--recompute-granularity": "selective"},
    "--checkpoint-activations": {"--recompute-granularity": "full"},
    "--activations-checkpoint-method": {
        "--recompute-granularity": "full",
        "--recompute-method": None,
    },
    "--checkpoint-num-layers": {"--recompute-num-layers": None},
    "--activations-checkpoint-num-layers": {"--recompute-num-layers": None},
    "--use-flash-attn": {"--attention-backend": "flash"},
    "--fp8-hybrid": {"--fp8-format": "hybrid"},
    "--fp8-e4m3": {"--fp8-format": "e4m3"},
    "--enable-cuda-graph": {"--cuda-graph-impl": "local"},
    "--external-cuda-graph": {"--cuda-graph-impl": "transformer_engine"},
    "--cuda-graph-modules": {"--cuda-graph-scope": None},
    "--moe-enable-deepep": {"--moe-flex-dispatcher-backend": "deepep"},
    "--model-parallel-size": {"--tensor-model-parallel-size": None},
    "--batch-size": {"--micro-batch-size": None},
}
"""By a spelling the arguments that it stands for, None for its own value."""


def of_today(given: Mapping[str, str]) -> dict[str, str]:
    """The arguments without former spellings; what is also said in today's words stays as it is.

    >>> of_today({"--recompute-activations": "", "--seq-length": "8"})
    {'--seq-length': '8', '--recompute-granularity': 'selective'}
    """
    found = {flag: value for flag, value in given.items() if flag not in FORMER}
    for flag, stands_for in FORMER.items():
        for now, value in stands_for.items() if flag in given else ():
            found.setdefault(now, given[flag] if value is None else value)
    if "--recompute-activations" in given:
        found["--recompute-granularity"] = "selective"  # validate_args sets it over any other
    return found


def former_of(flag: str) -> list[str]:
    """The spellings of an argument of today."""
    return [former for former, stands_for in FORMER.items() if flag in stands_for]
