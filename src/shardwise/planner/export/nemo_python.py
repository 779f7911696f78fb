"""A Python recipe of NeMo 2 or Megatron-Bridge as Megatron's arguments: attributes that it assigns
(`recipe.trainer.strategy.tensor_model_parallel_size = 4`), and the recipe that it begins with
(`llm.llama3_70b.pretrain_recipe(num_nodes=8)`). Read as a tree; nothing of it is run."""

import ast
import re
from collections.abc import Iterator
from typing import Any

from shardwise.errors import BadRequest
from shardwise.planner.export.python_text import one_function, tree_of

_RECIPE = re.compile(r"(\w+_)?(pretrain|finetune|sft|peft)_(recipe|config)")
"""Functions that give a recipe, of the module or behind the name of its model."""
_KEYWORDS = {"num_nodes": "num_nodes", "num_gpus_per_node": "devices"}
"""Keywords of those functions that count."""
_PARALLEL = "model_parallel_size"


def is_recipe(text: str) -> bool:
    """Whether a text may be Python that changes a recipe."""
    return re.search(r"^\s*(import|from)\s.*\b(nemo|nemo_run|megatron)\b", text, re.M) is not None


def keys_of(text: str, target: str) -> dict[str, Any] | None:
    """The keys of a recipe by their last names, its own name as `recipe`; None for a text that
    changes no recipe, and no number of how it is cut."""
    if not is_recipe(text):
        return None
    try:
        tree = tree_of(target, text)
    except BadRequest:
        return None
    tree = one_function(target, tree, "recipe", _cuts)
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        found |= dict(_of_call(node)) if isinstance(node, ast.Call) else {}
    found |= dict(_assigned(tree))
    parts = any(_PARALLEL in key for key in found)
    return found if parts or "recipe" in found else None


def _cuts(node: ast.FunctionDef) -> bool:
    """Whether a function of a module, a public one, sets how a model is cut."""
    inside = (part for part in ast.walk(node) if isinstance(part, ast.Attribute))
    return not node.name.startswith("_") and any(_PARALLEL in part.attr for part in inside)


def _of_call(call: ast.Call) -> Iterator[tuple[str, Any]]:
    """The recipe's name and counts, or the degrees that a strategy is made with."""
    words = ast.unparse(call.func).split(".")
    named = _RECIPE.fullmatch(words[-1]) is not None
    if named:
        own = words[-2] if len(words) > 1 and words[-1] in _BARE else words[-1]
        yield "recipe", own
    if words[-1] == "from_hf_pretrained" and call.args and isinstance(call.args[0], ast.Constant):
        yield "hf_path", call.args[0].value
    for word in call.keywords:
        if named and word.arg in _KEYWORDS and isinstance(word.value, ast.Constant):
            yield _KEYWORDS[word.arg], word.value.value
        elif word.arg and _PARALLEL in word.arg and isinstance(word.value, ast.Constant):
            yield word.arg, word.value.value


_BARE = ("pretrain_recipe", "finetune_recipe", "pretrain_config", "finetune_config")


def _assigned(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Attributes that are given a plain value; another one as its text, to be told where a plan
    needs it."""
    for node in (node for part in tree.body for node in ast.walk(part)):
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Attribute):
            try:
                yield target.attr, ast.literal_eval(node.value)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                text = ast.unparse(node.value)[:80]
                yield target.attr, _DTYPES.get(text, text)


_DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
