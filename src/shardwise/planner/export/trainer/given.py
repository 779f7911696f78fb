"""What a text says, by the keys of the program that it is for.

A launch line's arguments and a YAML of TRL have transformers' names, axolotl its own; those of
`accelerate launch` and of its config are one set, its sections dotted (`fsdp_config.fsdp_version`);
a DeepSpeed JSON's stand behind `deepspeed.`. A Python script's are `python_script.py`'s. Whoever
reads a key takes it: what nobody took is told (`unread.py`), so no list of keys can be behind what
is read.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.boundary import parse_json, parse_toml, parse_yaml
from shardwise.errors import BadRequest, shown
from shardwise.models.zoo import of_hub, zoo_names
from shardwise.planner.export.flags import launched
from shardwise.planner.export.interpolation import interpolated
from shardwise.planner.export.notes import number
from shardwise.planner.export.script import Launch, script_of
from shardwise.planner.export.torchtitan_keys import flat
from shardwise.planner.export.trainer.dialects import dialect_of, translated
from shardwise.planner.export.trainer.files import named_files, parts
from shardwise.planner.export.trainer.python_script import Unset, is_python, values_of

MODEL = ("model_name_or_path", "base_model", "model_name", "model_id")
"""Keys that name the model."""
_STORED = re.compile(
    r"(-(unsloth|bnb|4bit|8bit|gptq|awq|int4|int8|dequantized|mcore))+$", re.IGNORECASE
)
"""The end of an id that says how its owner stored a model of others, and in how many bits."""


def model_named(text: str) -> str | None:
    """The model of the zoo with a name, a Hugging Face id, or that a folder's name is of."""
    path = text.rstrip("/")
    last = _STORED.sub("", path.rpartition("/")[2])
    return text if text in zoo_names() else of_hub(path) or of_hub(last)


JSON = "deepspeed."
_IN_DEEPSPEED = (
    *("zero_stage", "offload_optimizer_device", "offload_param_device", "gradient_clipping"),
    *("offload_optimizer_nvme_path", "offload_param_nvme_path", "zero3_init_flag"),
    *("zero3_save_16bit_model", "deepspeed_config_file", "deepspeed_hostfile"),
    *("deepspeed_multinode_launcher", "deepspeed_moe_layer_cls_names"),
    *("gradient_accumulation_steps", "deepspeed_exclusion_filter", "deepspeed_inclusion_filter"),
)
"""Flags of `accelerate launch` that its config holds under `deepspeed_config`."""
_SECTIONS = {"fsdp": "fsdp_config", "parallelism_config": "parallelism_config", "fp8": "fp8_config"}
_OWN = re.compile(r"^(zero_optimization|train_micro_batch_size_per_gpu|train_batch_size)$")
_FLAG = re.compile(r"--|-[A-Za-z]+$")
_RENAMED = {"fsdp_config.fsdp": "fsdp", "accelerate_config": "config_file"}


class Given:
    """Values by key, of another program's as the Trainer calls them (`dialects.py`); `take` gives
    one and remembers that it was read. `target` is what errors call the program."""

    def __init__(
        self, values: Mapping[str, Any], launch: Launch | None = None, target: str = "trl"
    ) -> None:
        said = {k: v for k, v in values.items() if v is not None and v != ""}
        self.dialect = dialect_of(said, launch.origin if launch is not None else ())
        told = translated(said, self.dialect)
        self.values, self.spelt, self.silent = told.values, told.spelt, frozenset(told.silent)
        self.row = told.dialect
        self.defaults = self.row.defaults
        self.target = self.dialect.name if self.dialect is not None else target
        self.launch = launch
        self.read: set[str] = set()

    def take(self, *names: str, default: Any = None) -> Any:
        """The value of the first of some keys that is there and no "auto"; all count as read."""
        self.read |= {name for name in names if name in self.values}
        for name in (n for n in names if isinstance(self.values.get(n), Unset)):
            said = f"{self.called(name)} is {shown(self.values[name])} in the script"
            raise BadRequest(
                f"{self.target}: {said}, which does not give its value; write a plain value there"
            )
        found = [self.values[name] for name in names if self.values.get(name, "auto") != "auto"]
        usual = [self.defaults[name] for name in names if name in self.defaults]
        return next(iter([*found, *usual]), default)

    @property
    def shape(self) -> dict[str, str]:
        """Megatron's arguments of a model that has no name, as a program's row writes them."""
        whole = {**self.defaults, **self.values}
        return {key: str(value) for key, value in whole.items() if key.startswith("--")}

    def called(self, name: str) -> str:
        """A key as the text spells it."""
        return self.spelt.get(name, name)

    def on(self, *names: str, default: bool = False) -> bool:
        """A switch."""
        value = self.take(*names, default=default)
        return value if isinstance(value, bool) else str(value).lower() in ("true", "1", "yes")

    def known(self, words: Mapping[Any, Any], *names: str) -> Any:
        """What the word of a key stands for; None, and not read, where it is none of `words`."""
        for name in names:
            value = self.values.get(name, self.defaults.get(name))
            if isinstance(value, Unset):
                self.take(name)
            value = value.lower() if isinstance(value, str) else value
            if isinstance(value, str | bool | int) and value in words:
                self.read.add(name)
                return words[value]
        return None

    def same(self, what: str, *names: str, default: int) -> int:
        """A count of 1 or more; BadRequest where two keys say it otherwise."""
        said = {n: self.take(n) for n in names}
        counts = {n: self.count_of(n, value) for n, value in said.items() if value is not None}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{name} {value}" for name, value in counts.items())
            raise BadRequest(f"{self.target}: {what} is given twice, {told}; make them equal")
        return next(iter(counts.values()), default)

    def count_of(self, name: str, value: Any) -> int:
        """A value as a whole number from 1."""
        text = str(value)
        if "$" in text:
            said = f"{self.called(name)} is {shown(text)}"
            raise BadRequest(f"{self.target}: {said}, which the script does not set")
        found = number(self.target, self.called(name), text)
        if found < 1:
            raise BadRequest(
                f"{self.target}: {self.called(name)} is {found}; write a whole number from 1"
            )
        return found

    @property
    def sections(self) -> frozenset[str]:
        """The keys without those inside: DeepSpeed's own sections are told apart."""
        inner = (key.removeprefix(JSON) for key in self.values)
        names = (name.partition(".")[0] for name in inner)
        return frozenset(
            f"{JSON}{name}" if key.startswith(JSON) else name
            for key, name in zip(self.values, names, strict=True)
        )

    def __contains__(self, name: str) -> bool:
        return name in self.values


def given_of(text: str, target: str = "trl", *, whole: bool = True) -> Given:
    """What a text and the files that it holds say. What a launch line says goes before its files.

    Raises BadRequest for a file that is named and not there, as it says how the model is cut; not
    where the text need not be `whole`.
    """
    main, held = parts(text)
    if whole and not is_python(main) and (missing := named_files(text)):
        raise BadRequest(
            f"{target}: the text names the file {shown(missing[0])}, which holds keys of the "
            "plan; put it beside this one"
        )
    values: dict[str, Any] = {}
    for name, part in held.items():
        if not name.endswith((".py", ".sh", ".txt")):
            values |= _keys_of(part, target)
    table = values_of(main, target) if is_python(main) else _table(main, target)
    launch = launched(target, main) if table is None else None
    values |= _sorted_out(table) if table is not None else _of_launch(launch, target)
    named = (
        *("deepspeed", "deepspeed_config", "config_file", "config"),
        "deepspeed_config.deepspeed_config_file",
    )
    bare = {name.rpartition("/")[2] for name in held}  # a folder may be a variable's
    files = [key for key in named if str(values.get(key)).rpartition("/")[2] in bare]
    found = Given({k: v for k, v in values.items() if k not in files}, launch, target)
    if not found.values:
        raise BadRequest(f"{target}: the text holds no key; give a launch line, YAML or JSON")
    return found


def _table(text: str, target: str) -> Mapping[str, Any] | None:
    """The keys of a YAML, TOML or JSON text; None for one that is none of these."""
    plain = text.strip()
    if script_of(text):
        return None
    if (table := _sections_of(text, target)) is not None:
        return table
    if plain.startswith("{"):
        found = parse_json(plain, f"{target}: the file")
    elif re.search(r"^[\w.]+:(\s|$)", plain, re.MULTILINE) and not re.search(
        r"^\S*(accelerate|torchrun|deepspeed|python\S*|trl|srun)\s", plain, re.MULTILINE
    ):
        found = parse_yaml(plain, f"{target}: the file")
    else:
        return None
    if not isinstance(found, Mapping):
        raise BadRequest(f"{target}: the file is not a mapping of keys to values")
    return {str(key): value for key, value in interpolated(found).items()}


def _sections_of(text: str, target: str) -> Mapping[str, Any] | None:
    """The keys of a TOML text; None for any other, as a script that writes one."""
    if re.search(r"^\[[a-z_.]+\]\s*(#.*)?$", text, re.MULTILINE) is None:
        return None
    try:
        return parse_toml(text, f"{target}: the file")
    except BadRequest:
        return None


def _keys_of(text: str, target: str) -> dict[str, Any]:
    table = _table(text, target)
    return {} if table is None else _sorted_out(table)


def _sorted_out(table: Mapping[str, Any]) -> dict[str, Any]:
    """Keys by dotted name, those of DeepSpeed's own JSON behind its name."""
    own = any(map(_OWN.match, table))
    values = flat({"deepspeed": table} if own else table)
    if not own:  # a dotted key says more than the empty one of its section
        values |= {key: value for key, value in table.items() if "." in key}
    return {_RENAMED.get(key, key): value for key, value in values.items()}


def _of_launch(launch: Launch | None, target: str) -> dict[str, Any]:
    """The flags of accelerate and of the program that it starts."""
    if launch is None:
        return {}
    values = {_in_config(name): value for name, value in _flags(launch.options)}
    values |= {w[0]: _value(w[1]) for w in map(_assigned, launch.arguments) if w is not None}
    for name, value in _flags(launch.arguments):
        if isinstance(value, str) and value.lstrip().startswith("{"):
            inner = parse_json(value, f"{target}: --{name}")
            values |= flat({name: inner}) if isinstance(inner, Mapping) else {}
        else:
            values[name] = value
    return values


def _in_config(name: str) -> str:
    """The key of accelerate's config that a flag of `accelerate launch` stands for."""
    if name in _IN_DEEPSPEED:
        return f"deepspeed_config.{name}"
    for begin, section in _SECTIONS.items():
        if name.startswith(f"{begin}_"):
            return f"{section}.{name}"
    return name


def _flags(words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """`--name value...`, `--name=value` and `--name`; `--no_name` is a false one."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("--") or len(word) < 3:
            continue
        name, equals, value = word[2:].partition("=")
        several = [value] if equals else []
        while not equals and at < len(words) and not _FLAG.match(words[at]):
            if several and _assigned(words[at]):
                break
            several.append(words[at])
            at += 1
        name = name.replace("-", "_")
        if not several and name.startswith("no_"):
            yield name.removeprefix("no_"), False
        else:
            plain = [_value(text) for text in several]
            yield name, True if not plain else plain[0] if len(plain) == 1 else plain


def _assigned(word: str) -> tuple[str, str] | None:
    """The key and the value of `a.b=value`, as Hydra and torchtune take them."""
    found = re.fullmatch(r"[+~]{0,2}([A-Za-z_][\w.]*)=(.*)", word, re.DOTALL)
    return (found[1], found[2]) if found else None


def _value(text: str) -> Any:
    """A flag's value: a switch, a whole number, or text."""
    switch = {"true": True, "false": False}.get(text.lower())
    if switch is not None:
        return switch
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else text
