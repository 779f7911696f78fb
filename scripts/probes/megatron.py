"""Run by check_exports.py: Megatron-LM's own parser and `validate_args` take every command, and
GPTModel is built of it on the meta device."""

import argparse
import json
import os
import shlex
import subprocess
import sys
import typing
import zipfile
from pathlib import Path
from typing import Any

import typing_extensions

typing.override = typing_extensions.override  # the wheel is for Python 3.12
WHEEL = "megatron-core==0.19.2"


def unpacked(folder: Path) -> Path:
    """The wheel's files, not installed: its metadata wants Python 3.12."""
    place = folder / "megatron"
    if not place.exists():
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), WHEEL]
        subprocess.run([*pip, "--python-version", "3.12", "--only-binary=:all:"], check=True)
        with zipfile.ZipFile(next(folder.glob("megatron_core-*.whl"))) as wheel:
            wheel.extractall(place)
    return place


def main(source: str, target: str, folder: str) -> None:
    """Every file of `source` by name: its error, or the parameters of its model."""
    sys.path.insert(0, str(unpacked(Path(folder))))
    found = {}
    for key, text in json.loads(Path(source).read_text()).items():
        try:
            found[key] = built(validated(text))
        except (SystemExit, Exception) as error:  # what the program says is the record
            found[key] = {"error": f"{type(error).__name__}: {error}"[:400]}
    Path(target).write_text(json.dumps({"files": found, "flags": flags()}))


def built(args: Any) -> dict[str, Any]:
    """The parameters of the model, or why its builder does not run without a GPU."""
    try:
        return {"parameters": parameters(args)}
    except (TypeError, RuntimeError, AssertionError) as error:
        return {"builder": f"{type(error).__name__}: {error}"[:200]}


def words_of(text: str) -> list[str]:
    """The words of the command, comments left out."""
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return shlex.split(plain.replace("\\\n", " "))


DATA = ("--mock-data", "--tokenizer-type", "NullTokenizer", "--train-iters", "1", "--lr", "1e-4")
"""What a plan leaves to the user."""


def validated(text: str) -> Any:
    """The arguments, as Megatron's own validation leaves them."""
    import torch
    from megatron.training.arguments import parse_args, validate_args

    words = words_of(text)
    at = words.index("pretrain_gpt.py")
    launch = words[:at]
    for word in launch:
        name, equals, value = word.partition("=")
        if equals and name.isupper():
            os.environ[name] = value
    if "CUDA_DEVICE_MAX_CONNECTIONS=1" not in launch:
        os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    hosts, each = (int(launch[launch.index(f) + 1]) for f in ("--nnodes", "--nproc-per-node"))
    os.environ |= {"WORLD_SIZE": str(hosts * each), "RANK": "0"}
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # of the GPUs that the plan is for
    torch.cuda.get_device_properties = lambda *_: argparse.Namespace(major=9, minor=0)
    sys.argv = ["pretrain_gpt.py", *words[at + 1 :], *DATA]
    return validate_args(parse_args())


def parameters(args: Any) -> int:
    """Of the whole model on one rank, built on the meta device by Megatron's local layers."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.training.arguments import core_transformer_config_from_args

    if not parallel_state.model_parallel_is_initialized():
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{Path.cwd()}/meeting", rank=0, world_size=1
        )
        parallel_state.initialize_model_parallel()
        torch.cuda.Stream = lambda *_, **__: None
        torch.cuda.current_device = lambda: "meta"
    config = core_transformer_config_from_args(alone(args))
    config.use_cpu_initialization, config.perform_initialization = True, False
    config.persist_layer_norm = False
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    with torch.device("meta"):
        model = GPTModel(
            config=config,
            transformer_layer_spec=spec,
            vocab_size=args.vocab_size,
            max_sequence_length=args.max_position_embeddings,
            share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
            position_embedding_type="none",
        )
    return sum(p.numel() for p in model.parameters())


def alone(args: Any) -> Any:
    """The arguments of one rank that holds the whole model."""
    one = argparse.Namespace(**vars(args))
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size",
                 "context_parallel_size", "expert_model_parallel_size",
                 "expert_tensor_parallel_size"):  # fmt: skip
        setattr(one, name, 1)
    one.virtual_pipeline_model_parallel_size = one.pipeline_model_parallel_layout = None
    one.sequence_parallel = one.tp_comm_overlap = one.moe_grouped_gemm = False
    one.gradient_accumulation_fusion = one.apply_rope_fusion = one.fp8_param_gather = False
    one.recompute_granularity = one.recompute_modules = one.recompute_method = None
    one.no_persist_layer_norm = True
    return one


def flags() -> list[str]:
    """Every option of the parser."""
    from megatron.training.arguments import add_megatron_arguments

    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    return sorted(parser._option_string_actions)


if __name__ == "__main__":
    main(*sys.argv[1:4])
