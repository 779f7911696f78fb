"""Run by check_exports.py where axolotl is installed: its schema takes every YAML, with the dataset
and the rate that a plan does not choose."""

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from axolotl.utils.schemas.config import AxolotlInputConfig

OWN = {"datasets": [{"path": "tatsu-lab/alpaca", "type": "alpaca"}], "learning_rate": 2e-5}


def main(source: str, target: str) -> None:
    """Every file of `source` by name: its error, or what the schema made of it."""
    found: dict[str, dict[str, Any]] = {}
    for key, text in json.loads(Path(source).read_text()).items():
        given = yaml.safe_load(text)
        try:
            read = AxolotlInputConfig(**OWN, **given).model_dump(mode="json")
            found[key] = {"parameters": None, "read": {k: read[k] for k in given if k in read}}
        except Exception as error:  # what axolotl says is the record
            found[key] = {"error": f"{type(error).__name__}: {error}"[:400]}
    flags = sorted(AxolotlInputConfig.model_fields)
    Path(target).write_text(json.dumps({"files": found, "flags": flags}))


if __name__ == "__main__":
    main(*sys.argv[1:3])
