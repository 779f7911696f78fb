"""Run by check_exports.py where trl and accelerate are installed: TRL's own parser takes
the arguments of every script, accelerate's those of its launcher and the config that one writes."""

import dataclasses
import json
import re
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import launch_command_parser
from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser

HERE = re.compile(r"^cat > (\S+) <<'END'\n(.*?)^END\n", re.MULTILINE | re.DOTALL)


def main(source: str, target: str) -> None:
    """Every file of `source` by name: its error, or what the parsers made of it."""
    found: dict[str, dict[str, Any]] = {}
    for key, text in json.loads(Path(source).read_text()).items():
        try:
            found[key] = {"parameters": None, "read": taken(text)}
        except (SystemExit, Exception) as error:  # what the programs say is the record
            found[key] = {"error": f"{type(error).__name__}: {error}"[:400]}
    Path(target).write_text(json.dumps({"files": found, "flags": flags()}))


def taken(text: str) -> dict[str, Any]:
    """What the parsers read of a script."""
    lines = [line for line in HERE.sub("", text).splitlines() if not line.startswith("#")]
    words = shlex.split("\n".join(lines).replace("\\\n", " "))
    with tempfile.TemporaryDirectory() as place:
        read: dict[str, Any] = {}
        for name, held in HERE.findall(text):
            path = Path(place) / name
            path.write_text(held)
            words = [str(path) if word == name else word for word in words]
            if name.endswith(".yaml"):
                read["accelerate"] = vars(load_config_from_file(str(path)))
        at = words.index("trl.scripts.sft")
        if words[0] == "accelerate":
            given = vars(launch_command_parser().parse_args(words[2 : at + 1]))
            read["launch"] = {
                k: v for k, v in given.items() if k in ("num_processes", "num_machines")
            }
        parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
        argued = [
            *words[at + 1 :],
            "--output_dir",
            place,
            "--use_cpu",
            "true",
            "--report_to",
            "none",
        ]
        keys = [word[2:] for word in argued if word.startswith("--")]
        parsed = parser.parse_args_and_config(args=without_gpus(argued))
        read["arguments"] = {
            k: plain(v) for part in parsed for k, v in vars(part).items() if k in keys
        }
    return json.loads(json.dumps(read, default=str))


def without_gpus(words: list[str]) -> list[str]:
    """The words without what only devices take: DeepSpeed is started, fp16 asks for a GPU."""
    left = list(words)
    if "--deepspeed" in left:
        at = left.index("--deepspeed")
        del left[at : at + 2]
    return left


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    return getattr(value, "value", value)


def flags() -> dict[str, list[str]]:
    """The names that TRL's parser takes, and the keys of accelerate's config."""
    own, config = (ScriptArguments, SFTConfig, ModelConfig), (ClusterConfig,)
    classes = {"trl": own, "accelerate": config}
    return {
        name: sorted({field.name for cls in found for field in dataclasses.fields(cls)})
        for name, found in classes.items()
    }


if __name__ == "__main__":
    main(*sys.argv[1:3])
