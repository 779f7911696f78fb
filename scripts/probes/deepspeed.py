"""Run by check_exports.py where DeepSpeed is installed: its config takes the JSON of every script,
with the counts that the Trainer fills in where it says "auto"."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from deepspeed.runtime import constants
from deepspeed.runtime.config import DeepSpeedConfig

HERE = re.compile(r"^cat > (\S+\.json) <<'END'\n(.*?)^END\n", re.MULTILINE | re.DOTALL)
FILLED = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "train_batch_size": 1,
    "gradient_clipping": 1.0,
}


def main(source: str, target: str) -> None:
    """Every file of `source` by name: its error, or what the config made of it."""
    found: dict[str, dict[str, Any]] = {}
    for key, text in json.loads(Path(source).read_text()).items():
        try:
            ((_, held),) = HERE.findall(text)
            given = json.loads(held)
            given |= {name: FILLED[name] for name in FILLED if given.get(name) == "auto"}
            config = DeepSpeedConfig(given)
            read = config.zero_config.model_dump(mode="json")
            found[key] = {"parameters": None, "read": {"zero_optimization": read}}
        except (SystemExit, Exception) as error:  # what DeepSpeed says is the record
            found[key] = {"error": f"{type(error).__name__}: {error}"[:400]}
    Path(target).write_text(json.dumps({"files": found, "flags": flags()}))


def flags() -> list[str]:
    """The sections of its JSON, by its constants."""
    names = {v for k, v in vars(constants).items() if k.isupper() and isinstance(v, str)}
    own = {"zero_optimization", "bf16", "fp16", "activation_checkpointing", "flops_profiler"}
    return sorted(
        f"deepspeed.{name}" for name in names | own if re.fullmatch(r"[a-z][a-z0-9_]{3,}", name)
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
