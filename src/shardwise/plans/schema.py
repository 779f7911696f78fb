"""The JSON Schema of plan files, from the plans themselves, for editors and other programs.

It says which keys there are, what each means, their types and their choices, and which ones a file
needs: those that a person writes (`handwritten.py`, `handwritten_serve.py`). The rules that join
several keys (a batch that divides, stages that add up) are checked when a plan is read.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.errors import check_known
from shardwise.plans import handwritten, handwritten_serve
from shardwise.plans.files import FORMER_KEY, KINDS, keys_of

_COUNT, _TIME = {"type": ["integer", "string"]}, {"type": ["number", "string"]}
WORDS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "train": {"batch": _COUNT, "length": _COUNT, FORMER_KEY: {"type": "boolean"}},
    "serve": {
        "input": _COUNT,
        "output": _COUNT,
        "rate": {"type": ["number", "string"]},
        **dict.fromkeys(("ttft", "tpot", "e2e"), _TIME),
        "trace": {"type": "string"},
    },
}
"""Of each kind the keys that only a person writes, which become others when the file is read."""
_NEEDED = {
    "train": (tuple(handwritten.EXAMPLE), handwritten.WORD_OF),
    "serve": (handwritten_serve.NEEDED, handwritten_serve.WORD_OF),
}
"""Of each kind the keys that a file needs, and which words stand for which keys of a whole plan."""

ABOUT: Mapping[str, str] = {
    "kind": "train, or serve",
    "model": "zoo name, or the path of a config.json or of its folder, seen from this file",
    "model_hash": "of the model's config, to notice that it changed; computed where left out",
    "slice": "the chips, such as v5p:4x4x8, h100:8 or 4*h100:8",
    "mesh": "mesh axes and their degrees, outermost first, such as {fsdp: 64, tensor: 2}",
    "box": "the part of each physical axis of a slice that the mesh uses",
    "constants": "whose numbers for the chips: the vendor's, or the book's",
    "chips": "what the chips have that the catalogue's have not",
    # a training plan
    "batch": "training: tokens of a step (4Mi) or sequences (512seq); serving: most sequences of a "
    "server at once",
    "length": "tokens of a sequence, such as 8192 or 8Ki",
    "global_batch_sequences": "sequences of a step",
    "sequence_length": "tokens of a sequence",
    "microbatches": "parts of a step's batch, one after the other",
    "layers_per_stage": "layers of each pipeline stage",
    "slices": "how many of the slices, joined by the data-centre network, are used",
    "placement": "which axes get the fastest part of the network",
    "software": "the program that the plan is for, or any",
    "zero": "what replicas keep in pieces: 1 the optimizer state, 2 gradients too",
    "storage_axes": "mesh axes that store parameters, gradients and optimizer state in pieces",
    "weight_gather": "how often parameters that lie in pieces are gathered",
    "gradient_reduce": "how often gradients are summed over devices",
    "sequence_parallel": "whether activations between matmuls lie in pieces over tensor",
    "remat": "which activations are kept for the backward pass",
    "remat_kinds": "kinds of activations that are kept, recomputed or offloaded otherwise",
    "attention_kernel": "flash: what the software calls by itself; sdpa, fa2, fa3, cudnn: that "
    "library; scores: the scores are written to memory",
    "pipeline_schedule": "the order of passes in a pipeline",
    "virtual_stages": "chunks of each pipeline stage",
    "context_method": "how attention sees a sequence that is cut over the mesh axis context",
    "expert_dispatch": "dense: each expert has slots; ragged: as many tokens as choose it",
    "expert_capacity": "slots of an expert over its mean load (dense dispatch)",
    "expert_imbalance": "load of the busiest device over the mean (ragged dispatch)",
    "expert_over_tensor": "whether experts lie apart over the mesh axis tensor, too",
    "offload_optimizer": "whether the optimizer state lies in the hosts' memory",
    "optimizer": "the optimizer",
    "lora_rank": "rank of LoRA adapters; 0 trains the parameters themselves",
    "frozen": "components that are not trained",
    "mtp_layers": "layers that predict further tokens",
    "logit_chunks": "pieces that the loss of a microbatch is made in",
    "packed_lengths": "documents of one sequence, in tokens; none is one document",
    "dtypes": "dtypes by what has them",
    "stack": "the software whose constants price the plan",
    "gradient_accumulation": "whether matmuls of weight gradients add into the sum",
    "overlap": "whose transfers run beside compute",
    "compiled": "whether a compiler fuses elementwise work",
    "fused_loss": "whether the loss is one kernel that makes no copy of the logits in float32",
    "cuda_graph": "parts of the step that CUDA graphs start; full: all of it",
    "grouped_kernel": "whether the products of a layer's experts are a kernel each, or one (fused)",
    "dispatcher": "what sends tokens to experts; none: once to each device that has one of them",
    "wide": "components whose products stay in 16 bits beside the router and the head",
    FORMER_KEY: "former name: true is weight_gather per_pass, false per_microbatch",
    # a serving plan
    "input": "tokens of a prompt",
    "output": "tokens of an answer",
    "input_length": "tokens of a prompt",
    "output_length": "tokens of an answer",
    "rate": "requests per second, which come at random",
    "ttft": "longest time to the first token, such as 2s; in a whole plan seconds",
    "tpot": "longest time per output token, such as 30ms; in a whole plan seconds",
    "e2e": "longest time from arrival to the last token; in a whole plan seconds",
    "trace": "file of requests that lengths are drawn from, seen from this file",
    "prefill_chunk": "most tokens of a step",
    "kv_sharding": "how the KV cache is cut where tensor has more devices than KV heads",
    "engine": "the software that serves, whose measured constants are counted",
    "replicas": "servers that answer",
    "prefill_replicas": "further servers that only prefill",
    "prefill": "what those are, where they are other than the servers that answer",
    "routing": "how requests are spread over servers",
    "scheduling": "how a server chooses what each step runs",
    "workload": "the load that the plan was made for, and its targets",
    # inner tables
    "files": "hardware files, seen from this file (--hw)",
    "numbers": "changed numbers of chips, such as {h100.hbm_bandwidth: 4e12} (--set)",
    "prices": "dollars per chip-hour by chip (--price)",
    "provider": "whose price is taken",
    "spot": "whether the price is one of the spot market",
    "param": "stored parameters",
    "compute": "what matmuls multiply",
    "grad": "gradients, as reduced and summed",
    "master": "the optimizer's own copy of the parameters, or none",
    "moments": "the optimizer's moments",
    "weights": "stored weights; checkpoint: as they are stored there",
    "kv": "the KV cache",
    "activations": "activations on the wire",
    "matmuls": "compute, or stored: quantized weights as the engine multiplies them",
    "policy": "which requests start and run in a step",
    "page_size": "tokens of a page of the cache",
    "prefix_cache": "whether prompts share what they begin with",
    "admission": "how much of the cache a new request must find free",
    "margin": "share of the cache that is kept free",
    "order": "which waiting request is first",
    "age_seconds": "after which a request counts as old (order aged)",
    "swap": "whether preempted sequences go to the host's memory",
    "memory_share": "share of a chip's memory that a server takes",
    "release": "version of the engine whose memory is counted; empty: the newest known",
    "graphs": "whether the engine captures graphs of its steps",
    "host_cache_share": "share of the hosts' memory for prefixes that were evicted",
    "max_waiting": "most requests that wait; 0 is any number",
    "refuse_late": "whether a request that cannot keep its deadline is refused",
    "guesses": "tokens guessed a step",
    "acceptance": "how likely a guess is right",
    "guess_cost": "cost of a guess, in steps",
}
"""What each key means; keys of one name mean the same in all tables."""


def plan_schema(kind: str) -> dict[str, Any]:
    """The schema (draft 2020-12) of a "train" or a "serve" plan; other keys are not allowed."""
    from pydantic import TypeAdapter

    check_known("plan kind", kind, KINDS)
    schema = TypeAdapter(KINDS[kind]).json_schema()
    for part in schema.get("$defs", {}).values():
        part |= {"additionalProperties": False, "properties": _described(part["properties"])}
    own = {key: schema["properties"][key] for key in keys_of(KINDS[kind])}
    needed, word_of = _NEEDED[kind]
    either = [
        {"anyOf": [{"required": [name]}, {"required": [key]}]}
        for key, name in word_of.items()
        if name in needed
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "description": f"A {kind} plan of shardwise: the keys that a person writes, or all of them",
        "properties": _described({"kind": {"const": kind}, **WORDS[kind], **own}),
        "required": [name for name in needed if name not in WORDS[kind]],
        "allOf": either,
        "additionalProperties": False,
    }


def _described(properties: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The keys, each with what it means."""
    return {key: {**said, "description": ABOUT[key]} for key, said in properties.items()}
