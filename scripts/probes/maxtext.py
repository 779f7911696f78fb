"""Run by check_exports.py in MaxText's environment: its pyconfig takes every command, and its model
is built with abstract parameters."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("DECOUPLE_GCLOUD", "FALSE")

import maxtext.configs
from maxtext.configs import pyconfig

BASE = Path(maxtext.configs.__file__).with_name("base.yml")


def main(source: str, target: str) -> None:
    """Every file of `source` by name: its error, or the parameters of its model."""
    counted: dict[str, int | None] = {}
    found = {}
    for key, text in json.loads(Path(source).read_text()).items():
        try:
            found[key] = {"parameters": taken(words_of(text), counted)}
        except (SystemExit, Exception) as error:  # what the program says is the record
            found[key] = {"error": f"{type(error).__name__}: {error}"[:400]}
    Path(target).write_text(json.dumps({"files": found, "flags": flags()}))


def words_of(text: str) -> list[str]:
    """The key=value words of the command."""
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return [w for w in shlex.split(plain.replace("\\\n", " ")) if "=" in w]


def taken(words: list[str], counted: dict[str, int | None]) -> int | None:
    """The parameters of the model of a config that pyconfig takes."""
    config = pyconfig.initialize(["train", str(BASE), *words, "base_output_directory=out"])
    at = json.dumps([w for w in words if w.startswith(("base_", "num_e", "vocab", "decoder_b"))])
    if at not in counted:
        counted[at] = parameters(config)
    return counted[at]


def parameters(config: Any) -> int | None:
    """Not reached: the builder lays parameters on the devices of the plan."""
    return None


def flags() -> list[str]:
    """The keys that pyconfig knows."""
    from maxtext.configs import types

    return sorted(types.MaxTextConfig.model_fields)


if __name__ == "__main__":
    main(*sys.argv[1:3])
