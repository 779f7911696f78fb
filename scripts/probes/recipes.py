#!/usr/bin/env python3
"""What TRL's, accelerate's, axolotl's and DeepSpeed's own parsers make of the recipes of
tests/planner/export/recipes: parsed.json there.

    PYTHON -P scripts/probes/recipes.py

PYTHON is one of an environment that check_exports.py made (`--keep`), or several in turn: a file is
parsed where its program is installed, and kept as it was where not.
"""

import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "tests" / "planner" / "export" / "recipes"
RECORD = FOLDER / "parsed.json"


def of_axolotl(path: Path) -> Mapping[str, Any]:
    """The schema's values of the keys that the file has."""
    import yaml
    from axolotl.utils.schemas.config import AxolotlInputConfig

    given = {k: v for k, v in yaml.safe_load(path.read_text()).items() if v is not None}
    read = AxolotlInputConfig(**given).model_dump(mode="json")
    known = [key for key in given if key in read and not isinstance(read[key], dict | list)]
    return {key: read[key] for key in known}


_OTHERS = ("report_to", "push_to_hub", "datasets", "packing_strategy")
"""Of what is reported or packed how, whose words have changed."""


def of_trl(path: Path) -> Mapping[str, Any]:
    """What TrlParser gives of the keys that its classes have; a key of before is left out."""
    import yaml
    from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser

    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
    known = {action.dest for action in parser._actions}
    given = {k: v for k, v in yaml.safe_load(path.read_text()).items() if k in known}
    given = {k: v for k, v in given.items() if k not in _OTHERS and not isinstance(v, list)}
    words = [f"--{k}={json.dumps(v) if isinstance(v, dict) else v}" for k, v in given.items()
             if not isinstance(v, list)]  # fmt: skip
    parsed = parser.parse_args_and_config([*words, "--use_cpu=true", "--report_to=none"])
    read = {k: v for part in parsed for k, v in vars(part).items()}
    found = {k: getattr(read[k], "value", read[k]) for k in given}
    return {k: v for k, v in found.items() if not isinstance(v, dict | list)}


def of_accelerate(path: Path) -> Mapping[str, Any]:
    """The values of accelerate's config, its sections dotted."""
    from accelerate.commands.config.config_args import load_config_from_file

    read = vars(load_config_from_file(str(path)))
    return {
        f"{key}.{name}" if name else key: getattr(value, "value", value)
        for key, section in read.items()
        for name, value in (section.items() if isinstance(section, dict) else [("", section)])
    }


def of_deepspeed(path: Path) -> Mapping[str, Any]:
    """The values of DeepSpeed's config of ZeRO."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    given = json.loads(path.read_text())["zero_optimization"]
    read = DeepSpeedZeroConfig(**{k: v for k, v in given.items() if v != "auto"})
    own = read.model_dump(mode="json")
    own |= {k: v for k, v in given.items() if k not in own}
    said = [k for k, v in given.items() if v != "auto" and not isinstance(v, dict)]
    flat = {key: own[key] for key in said}
    return {f"deepspeed.zero_optimization.{key}": value for key, value in flat.items()}


PARSERS: Mapping[str, tuple[str, Callable[[Path], Mapping[str, Any]]]] = {
    "axolotl_": ("axolotl", of_axolotl),
    "trl_": ("trl", of_trl),
    "accelerate_": ("accelerate", of_accelerate),
    "zero": ("deepspeed", of_deepspeed),
}


def _version(program: str) -> str:
    """As installed, or as it lies on the path."""
    try:
        return version(program)
    except PackageNotFoundError:
        return import_module(program).__version__


def main() -> int:
    """Parse what can be, keep the rest."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for path in sorted(FOLDER.iterdir()):
        program, parse = next(
            (p for b, p in PARSERS.items() if path.name.startswith(b)), ("", None)
        )
        if parse is None or path == RECORD:
            continue
        try:
            found = {"program": f"{program} {_version(program)}", "values": dict(parse(path))}
        except ImportError as error:
            print(f"{path.name}: {error}")
            continue
        except (Exception, SystemExit) as error:  # what the program refuses has no values
            print(f"{path.name}: {type(error).__name__}: {str(error)[:200]}")
            continue
        record[path.name] = found
    RECORD.write_text(json.dumps(dict(sorted(record.items())), indent=1, default=str) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
