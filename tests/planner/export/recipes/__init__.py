"""Files of other programs, with the keys and values of public ones: each names its repository, path
and commit. The JSON files are DeepSpeed's of axolotl (deepspeed_configs), which other files name.

`PLANS` become plans, on the slice and for the model that they leave out; `REFUSED` are refused for
what no plan can say, by its key.
"""

from dataclasses import dataclass
from pathlib import Path

from shardwise.planner.export.trainer import with_files

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Asked:
    """What a file leaves out."""

    on: str = "h100:8"
    model: str | None = None


_LLAMA, _MISTRAL = Asked(model="llama-3-8b"), Asked(model="mistral-7b-v0.1")
PLANS = {
    "accelerate_context_parallel_2gpu.yaml": Asked("h100:2", "llama-3-8b"),
    "accelerate_deepspeed_zero2.yaml": _LLAMA,
    "accelerate_deepspeed_zero3.yaml": _LLAMA,
    "accelerate_fsdp1.yaml": _LLAMA,
    "accelerate_fsdp2.yaml": _LLAMA,
    "axolotl_gpt_oss_20b_fsdp2.yaml": Asked(),
    "axolotl_llama32_3b_fp8.yaml": Asked(),
    "axolotl_llama3_70b_qlora_fsdp.yaml": Asked(model="llama-3-70b"),
    "axolotl_llama3_8b_full.yaml": Asked(),
    "axolotl_llama3_8b_liger_fsdp.yaml": Asked(),
    "axolotl_llama3_8b_lora.yaml": Asked(),
    "axolotl_mixtral_zero3.yaml": Asked(),
    "bridge_llama32_1b.yaml": Asked(model="llama-3.2-1b"),
    "bridge_llama3_8b_fsdp.yaml": _LLAMA,
    "bridge_qwen3_30b.yaml": Asked(model="qwen3-30b-a3b"),
    **{
        f"maxtext_gpu_{name}.yml": Asked("16*h100:8")
        for name in ("llama2_70b", "llama2_7b", "llama3.1_405b", "llama3_8b", "mixtral_8x7b")
    },
    "torchtitan_2024_06_llama3_8b.toml": Asked("64*h100:8"),
    "torchtitan_2025_02_llama3_8b.toml": Asked("64*h100:8"),
    "torchtitan_2025_03_llama3_70b.toml": Asked("64*h100:8"),
    "torchtitan_2025_08_llama3_405b.toml": Asked("64*h100:8"),
    "torchtitan_2025_09_deepseek_v3_671b.toml": Asked("64*h100:8"),
    "trl_smollm2.yaml": Asked(model="smollm2-1.7b"),
    "trl_smollm3.yaml": Asked(model="smollm3-3b"),
    "trl_starchat2.yaml": _LLAMA,
    "trl_zephyr_7b_full.yaml": _MISTRAL,
    "trl_zephyr_7b_qlora.yaml": _MISTRAL,
    "zero2.json": _LLAMA,
    "zero3_bf16.json": _LLAMA,
    "zero3_bf16_cpuoffload_all.json": _LLAMA,
}
REFUSED = {
    "axolotl_qwen3_32b_qlora.yaml": "optim is 'adamw_torch_4bit'",
    "bridge_deepseek_v3.yaml": "--tensor-model-parallel-size is '${TP}'",
    "bridge_qwen3_235b.yaml": "--tensor-model-parallel-size is '${TP}'",
}


def recipe_text(name: str) -> str:
    """A file's text, with the files that it names."""

    def beside(named: str) -> str | None:
        found = FOLDER / Path(named).name
        return found.read_text() if found.is_file() else None

    return with_files((FOLDER / name).read_text(), beside)
