"""What a Python script gives to transformers' Trainer or to TRL, by the keys of their YAML.

Keyword arguments of the calls below are read of the script's tree; nothing of it is run. A value
that is not a literal is looked up: a name that is assigned one, a parameter's default, an option of
argparse by its default. What remains is an `Unset`, told where a plan needs it.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.errors import BadRequest
from shardwise.planner.export.python_text import tree_of

TRL_CONFIG = "SFTConfig"
_MODEL = "model_name"
_ARGUMENTS = (
    TRL_CONFIG,
    "TrainingArguments",
    "Seq2SeqTrainingArguments",
    "UnslothTrainingArguments",
)
_PEFT = ("LoraConfig", "get_peft_model")
_QUANTIZED = ("BitsAndBytesConfig",)
_AUTOCAST = "AmpOptimWrapper"
_OF_AUTOCAST = {"bfloat16": "bf16", "float16": "fp16"}
"""Dtypes of mmengine's optimizer beside autocast, as accelerate calls them."""
_LOADS = ("from_pretrained",)
_TRAINERS = ("SFTTrainer", "Trainer", "Seq2SeqTrainer", "UnslothTrainer")
_OTHERS = (
    *("DPOConfig", "GRPOConfig", "KTOConfig", "ORPOConfig", "CPOConfig", "RewardConfig"),
    *("RLOOConfig", "PPOConfig", "GKDConfig"),
)
"""Arguments of trainings that no plan counts."""
_IN_PEFT = {"r": "lora_r", "target_modules": "lora_target_modules"}
_OF_MODEL = {
    **{name: name for name in ("attn_implementation", "dtype", "torch_dtype", "load_in_4bit")},
    **{name: name for name in ("load_in_8bit", "use_flash_attention_2")},
    "max_seq_length": "max_seq_length",
}
"""Keywords of a model's `from_pretrained` that count."""
_SETTINGS = (
    *("pretrained_model_name_or_path", "max_length", "pack_to_max_length", "batch_size"),
    *("accumulative_counts", "optim_type", "sequence_parallel_size"),
)
"""Names that xtuner's configs assign, from which their dicts are made."""
_OF_TRAINER = {"max_seq_length": "max_seq_length", "packing": "packing"}
"""Keywords of SFTTrainer itself, in TRL before 0.13."""


class Unset(str):
    """An expression that the script alone does not say."""


def is_python(text: str) -> bool:
    """Whether a text is a Python module rather than a launch script or a table of keys."""
    if text.startswith("#!") and "python" not in text.partition("\n")[0]:
        return False
    return re.search(r"^(import\s+\w|from\s+[\w.]+\s+import\s)", text, re.MULTILINE) is not None


def values_of(text: str, target: str) -> dict[str, Any]:
    """Values by key; BadRequest for a script that gives none in itself."""
    tree = tree_of(target, text)
    names, found = _names(tree), dict[str, Any]()
    if any(isinstance(n, ast.ImportFrom) and (n.module or "")[:6] == "xtuner" for n in tree.body):
        found |= _of_settings(tree, names)
    for call in _calls(tree):
        found |= {k: v for k, v in _of_call(call, names).items() if found.get(k) is None}
    if not found:
        calls = ", ".join((*_ARGUMENTS[:2], _PEFT[0]))
        raise BadRequest(
            f"{target}: the script sets no argument of {calls}; give the command that starts it, "
            "or its YAML file"
        )
    if _MODEL in found and any(_name(c.func) == TRL_CONFIG for c in _calls(tree)):
        found["model_name_or_path"] = found.pop(_MODEL)  # whose defaults are TRL's own
    return found


def _of_settings(tree: ast.Module, names: Mapping[str, ast.expr]) -> dict[str, Any]:
    """What a config of xtuner says under its settings' names; a class by its name, and a count that
    is multiplied by another name as their product."""
    told = {name: _value(value, names) for name, value in names.items() if name[:1] != "."}
    found = {
        name: value
        for name, value in told.items()
        if name in _SETTINGS or isinstance(value, bool | int | float)
    }
    found |= {k: str(v) for k, v in found.items() if isinstance(v, Unset) and k == "optim_type"}
    for node in tree.body:
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
            name, factor = _name(node.target), _value(node.value, names)
            if isinstance(found.get(name), int) and isinstance(factor, int):
                found[name] *= factor
    return found


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _of_call(call: ast.Call, names: Mapping[str, ast.expr]) -> dict[str, Any]:
    made = _made_by(call)
    kind = _name(made)
    given = {word.arg: _value(word.value, names) for word in call.keywords if word.arg}
    if made is not call.func:
        del given["type"]
    if kind in _ARGUMENTS:
        return {key: value for key, value in given.items() if value is not None}
    if kind in _OTHERS:
        return {"rl": kind.removesuffix("Config").lower()}
    if kind in _PEFT:
        adapted = "r" in given or kind == _PEFT[0]
        named = {_IN_PEFT.get(k, f"lora_{k.removeprefix('lora_')}"): v for k, v in given.items()}
        return {**named, "use_peft": True} if adapted else {}
    if kind in _QUANTIZED:
        return given
    if kind == _AUTOCAST:
        return {"mixed_precision": _OF_AUTOCAST.get(str(given.get("dtype")), "fp16")}
    if kind in _LOADS:
        return _of_loading(ast.Call(made, call.args, call.keywords), given, names)
    if kind in _TRAINERS:
        return _of_trainer(call, given, names)
    if kind.lower().endswith("tokenizer") and "max_length" in given:
        return {"max_length": given["max_length"]}
    return {}


def _made_by(call: ast.Call) -> ast.expr:
    """What a call makes: the `type` of a dict that a config builds it from (mmengine)."""
    kinds = (word.value for word in call.keywords if word.arg == "type")
    return next(kinds, call.func) if _name(call.func) == "dict" else call.func


def _of_loading(
    call: ast.Call, given: Mapping[str, Any], names: Mapping[str, ast.expr]
) -> dict[str, Any]:
    """The model that a class of models is loaded with, not a tokenizer or an adapter."""
    owner = _name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if "Model" not in owner or "Peft" in owner:
        return {}
    first = _value(call.args[0], names) if call.args else None
    said = first or given.get("pretrained_model_name_or_path") or given.get("model_name")
    return {_MODEL: said, **{_OF_MODEL[k]: v for k, v in given.items() if k in _OF_MODEL}}


def _of_trainer(
    call: ast.Call, given: Mapping[str, Any], names: Mapping[str, ast.expr]
) -> dict[str, Any]:
    first = _value(call.args[0], names) if call.args else given.get("model")
    named = {_MODEL: first} if isinstance(first, str) and not isinstance(first, Unset) else {}
    said = {_OF_TRAINER[k]: v for k, v in given.items() if k in _OF_TRAINER}
    return named | said


def _name(node: ast.expr) -> str:
    """The last word of a dotted name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _names(tree: ast.Module) -> dict[str, ast.expr]:
    """Expressions by the name that they are assigned to, once; by that of a parameter, and by the
    `args.NAME` of an option, as `.NAME`."""
    found: dict[str, ast.expr] = {}
    twice: set[str] = set()
    for name, value in _assigned(tree):
        if name in found and ast.dump(found[name]) != ast.dump(value):
            twice.add(name)
        found[name] = value
    return {name: value for name, value in found.items() if name not in twice}


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((t.id, node.value) for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
            yield node.target.id, node.value
        elif isinstance(node, ast.FunctionDef):
            named = node.args.posonlyargs + node.args.args
            last = len(node.args.defaults)
            pairs = zip(named[len(named) - last :], node.args.defaults, strict=True)
            yield from ((one.arg, value) for one, value in pairs)
        elif isinstance(node, ast.Call) and _name(node.func) == "add_argument":
            flag = next((a.value for a in node.args if isinstance(a, ast.Constant)), "")
            default = next((w.value for w in node.keywords if w.arg == "default"), None)
            if isinstance(flag, str) and default is not None:
                yield "." + flag.lstrip("-").replace("-", "_"), default


_DEEPEST = 8
"""Names that stand for names, at most."""


def _value(node: ast.expr, names: Mapping[str, ast.expr], depth: int = 0) -> Any:
    """The plain value of an expression, or an `Unset` of its text; a dtype is its name."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    if isinstance(node, ast.Attribute) and _name(node.value) == "torch":
        return node.attr
    stands = names.get(node.id) if isinstance(node, ast.Name) else None
    if isinstance(node, ast.Attribute):
        stands = names.get(f".{node.attr}")
    if stands is not None and depth < _DEEPEST:
        return _value(stands, names, depth + 1)
    return Unset(ast.unparse(node)[:80])
