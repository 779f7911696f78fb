"""The table format of measured runs: one row a run, every fact in a column of its own.

`RunRow` is the format: its fields are the columns, their descriptions the page `docs/runs.md`, and
`docs/runs.schema.json` is its JSON Schema. An empty cell is a fact that the source leaves open;
what is taken then follows from rules on structure (`plans.py`), the same for every row, and is
listed with the run. `id`, `source`, `citation`, `converted_from` and `notes` are for people: no
price depends on them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from shardwise import boundary
from shardwise.boundary.tables import WrongCell
from shardwise.boundary.typed import first_mistake
from shardwise.errors import BadRequest, unknown
from shardwise.plans.adapters import Quantized
from shardwise.plans.libraries import Library
from shardwise.plans.software.torchtitan import TORCHTITAN
from shardwise.plans.software.trainer import OPTIM_WORDS
from shardwise.plans.stacks import AttentionKernel, Gathers, Overlapped, PublishedStack, Reduces

PUBLISHED = Path(__file__).parent / "data" / "training_runs.csv"
"""772 published runs, each with its source and citation; the fit is of those with `fitted`."""

Metric = Literal[
    "step_time",
    "sequences_per_sec",
    "tokens_per_sec",
    "tokens_per_sec_per_device",
    "tflops_per_device",
    "device_hours_per_trillion_tokens",
]


SPELT: Mapping[str, str] = {
    **dict.fromkeys(("dp", "fsdp", "grad_reduce", "param_gather"), "data"),
    **dict.fromkeys(("tp", "async_tp", "tp_comm"), "tensor"),
    **dict.fromkeys(("pp", "p2p"), "pipeline"),
    **dict.fromkeys(("ep", "moe"), "expert"),
    "cp": "context",
    **dict.fromkeys(("fp16", "float16"), "f16"),
    **dict.fromkeys(("fp32", "float32"), "f32"),
    **dict.fromkeys(("bfloat16", "bf16-mixed", "bf16-true"), "bf16"),
    **dict.fromkeys(("float8", "fp8-hybrid"), "fp8"),
    "full": "block",
    "dropless": "ragged",
    "dropping": "capacity",
    **dict.fromkeys(OPTIM_WORDS["adam"], "adam"),
    **dict.fromkeys(OPTIM_WORDS["adam8bit"], "adam8bit"),
    **{theirs.lower(): ours for ours, theirs in TORCHTITAN.words["pipeline_schedule"].items()},
    "allgather": "all_gather",
    **{name: f"fa{name[-1]}" for name in ("flash_attention_2", "flash_attention_3")},
    **{name: f"fa{name[-1]}" for name in ("flashattention-2", "flashattention-3")},
    "eager": "scores",
    "splash": "flash",
}
"""Other words for values, as software writes them."""
PROGRAMS: Mapping[str, str] = {
    **dict.fromkeys(("maxtext", "levanter", "axlearn", "paxml", "torch_xla", "jax"), "xla"),
    **dict.fromkeys(("megatron-lm", "megatron-core", "megatron-bridge"), "megatron"),
    **dict.fromkeys(("nemo", "megatron-deepspeed", "gpt-neox"), "megatron"),
    **dict.fromkeys(("torchtitan", "torchtune", "pytorch", "deepspeed", "ddp"), "fsdp"),
    **dict.fromkeys(("transformers", "accelerate", "trl", "axolotl", "llama-factory"), "fsdp"),
}
"""Programs by the stack that they are of."""


def _spelt(value: Any) -> Any:
    """A word in lower case, as this project spells it.

    >>> _spelt("AdamW"), _spelt("FlashAttention-2")
    ('adam', 'fa2')
    """
    return SPELT.get(value.lower(), value.lower()) if isinstance(value, str) else value


def _stack(value: Any) -> Any:
    """A stack, of its own name or that of a program.

    >>> _stack("MaxText"), _stack("fsdp")
    ('xla', 'fsdp')
    """
    return PROGRAMS.get(value.lower(), value.lower()) if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    """A list from a cell with commas; "none" is the empty list, "default" leaves it open."""
    if not isinstance(value, str):
        return value
    words = [_spelt(word.strip()) for word in value.split(",") if word.strip()]
    if words == ["default"]:
        return None
    return () if words == ["none"] else tuple(words)


Size = Annotated[int, Field(ge=1, le=2**27)]
Name = Annotated[str, Field(max_length=200)]
Word = Annotated[str, Field(max_length=200), BeforeValidator(_spelt)]


class RunRow(BaseModel):
    """One measured training run. Seconds per optimizer step; sizes are whole, before sharding."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    # What it is, for people and for the folds of a fit.
    id: Name = Field(description="a name of the row, unique in the table")
    source: str = Field("", description="where it was published; reports alone show it")
    group: str = Field(
        "",
        description="publisher and software; runs of one group are left out together when an error "
        "is measured; the source where it is empty",
    )
    grade: str = Field(
        "", description="A: the source states all that a price needs; B: it does not"
    )
    fitted: bool = Field(
        True,
        description="whether constants may be fitted on it; one that is not judges the fit, and "
        "ranges are made of it",
    )
    citation: str = Field("", description="document, revision and place")
    converted_from: str = Field(
        "", description="the published figure and formula, where `step_seconds` was computed"
    )
    notes: str = Field("", description="anything else; never read by code")
    # The model.
    model: Name = Field(
        description="a model of the zoo, or its Hugging Face id, whose layers then hold (`layers` "
        "may cut it short); any other name only labels the shape in the columns below"
    )
    config: str = Field("", description="path of a config.json, relative to the table; it wins")
    layers: Size | None = Field(None, description="L")
    d_model: Size | None = Field(None, description="D")
    d_ff: Size | None = Field(None, description="F, of one expert where there are experts")
    heads: Size | None = Field(None, description="N")
    kv_heads: Size | None = Field(None, description="K; N where empty")
    head_dim: Size | None = Field(None, description="H; D / N where empty")
    vocab: Size | None = Field(None, description="V; 51,200 where empty (GPT-2's, padded)")
    experts: int | None = Field(None, ge=0, le=2**20, description="E")
    top_k: int | None = Field(None, ge=0, le=2**20, description="experts per token")
    gated_mlp: bool = Field(False, description="whether the MLP has a gate beside its input")
    tied_embeddings: bool | None = Field(
        None, description="one table for lookup and head; where empty, an ungated model has one"
    )
    positions: Literal["learned", "rotary"] | None = Field(
        None, description="where empty, learned in an ungated model, rotary in a gated one"
    )
    biases: bool | None = Field(
        None, description="on every matmul and norm; where empty, in an ungated model"
    )
    parallel_block: bool = Field(False, description="attention and MLP read the same input")
    # The machine.
    hardware: Name = Field(description="a chip of the catalogue, or an alias (`shardwise hw list`)")
    hw: str = Field(
        "",
        description="what differs from the catalogue: a hardware file, or `KEY=VALUE` as in --set, "
        "several with `;`",
    )
    nic_gbps_per_device: float | None = Field(
        None, gt=0, le=1e6, description="Gbit/s one way of the data-centre network, per device"
    )
    num_devices: Size = Field(
        description="chips in all; of GPUs with two devices these, where the degrees multiply to "
        "that"
    )
    slice: str = Field(
        "", description="shape of one slice (`16x16`); where empty, the most compact"
    )
    slices: Size | None = Field(
        None,
        description="slices joined by the data-centre network; of GPUs the nodes, where they hold "
        "fewer than the catalogue says",
    )
    # The plan.
    dp: Size = Field(1, description="replicas of the parameters")
    fsdp: Size = Field(1, description="shards of the parameters (ZeRO-3, FSDP)")
    tp: Size = Field(1, description="tensor parallelism")
    pp: Size = Field(1, description="pipeline stages")
    vpp: int | None = Field(None, ge=0, le=10_000, description="chunks of layers per stage")
    layout: str = Field(
        "", description="layers of each stage as Megatron-LM spells them; recorded, not priced"
    )
    ep: Size = Field(1, description="expert parallelism, made of ranks of dp, fsdp and tp")
    cp: Size = Field(1, description="context parallelism")
    zero: int | None = Field(
        None,
        ge=0,
        le=3,
        description="ZeRO stage; with fsdp above 1 the pieces are ZeRO-3; where empty, 0, and in "
        "PyTorch 1 if the run does not fit with 0",
    )
    schedule: Word = Field(
        "", description="pipeline schedule; where empty, interleaved if vpp is above 1, else 1f1b"
    )
    context_method: Word = Field("", description="ring, all_gather or ulysses")
    sequence_parallel: bool | None = Field(
        None,
        description="activations between matmuls cut over tp; where empty, on xla and in software "
        "of 2024 and later",
    )
    global_batch_seqs: int = Field(ge=1, le=2**40, description="sequences per optimizer step")
    seq_len: int = Field(ge=1, le=2**40, description="tokens per sequence")
    attention_length: float | None = Field(
        None,
        ge=1,
        le=2**40,
        description="mean length that a token's document has: the documents' lengths squared, over "
        "their sum; seq_len where empty",
    )
    micro_batch: float | None = Field(None, gt=0, le=2**20, description="sequences per microbatch")
    micro_batch_per: Literal["shard", "device"] = Field(
        "shard", description="whether `micro_batch` is of one shard of the batch or of one device"
    )
    weight_gather: Gathers | None = Field(None, description="how often fsdp gathers the weights")
    gradient_reduce: Reduces | None = Field(
        None, description="how often gradients are summed over dp and fsdp"
    )
    gradient_accumulation: Literal["fused", "separate"] | None = Field(
        None, description="whether the weight-gradient matmul adds into the sum itself"
    )
    overlap: Annotated[tuple[Overlapped, ...] | None, BeforeValidator(_listed)] = Field(
        None,
        description="whose transfers run beside compute: default, none, or a list of data, tensor, "
        "context, expert, pipeline",
    )
    remat: Word = Field(
        "",
        description="none, block, matmul_outputs; or `keep:KINDS`, `offload:KINDS`, "
        "`recompute:KINDS`, several with `;`, of the kinds in `models/remat.py` (`mlp_gate` is "
        "half of `mlp_in`). What `keep` and `offload` leave unnamed is recomputed, what "
        "`recompute` does is kept",
    )
    remat_layers: Size | None = Field(
        None, description="layers that `remat` holds for, all others keep everything; all if empty"
    )
    # The software.
    stack: Annotated[PublishedStack | None, BeforeValidator(_stack)] = Field(
        None,
        description="xla (MaxText and its like), megatron, fsdp (torchtitan and its like), "
        "nanotron, or a program's name; where empty, xla on TPUs, fsdp where fsdp is above 1, "
        "else megatron",
    )
    release: str = Field(
        "",
        pattern=r"^(\d{4}(\.\d{2}){0,2})?$",
        description="year of the software, with its month where it is known (2026, 2026.04)",
    )
    compiled: bool | None = Field(None, description="whether a compiler fuses the step")
    fused_loss: bool | None = Field(
        None,
        description="whether the loss is one kernel that makes no copy of the logits in float32; "
        "where empty, as `compiled`",
    )
    cuda_graph: str = Field(
        "",
        pattern=r"^(none|full|scoped:\w+(,\w+)*)?$",
        description="none, full, or `scoped:` with what is captured (attn,mamba,moe_router)",
    )
    attention_kernel: Annotated[AttentionKernel, BeforeValidator(_spelt)] = Field(
        "flash",
        description="sdpa, fa2, fa3 or cudnn; flash: what the software calls by itself; scores: "
        "the T x S scores are written to memory",
    )
    compute_dtype: Word = Field(
        "",
        description="of the matmuls; where empty, bf16, and f16 in software before 2024 that is "
        "not on xla and on chips without bf16",
    )
    attention_dtype: Word = Field(
        "",
        description="of products of mixers and latent projections: bf16 where they stay wide "
        "beside narrower ones; fp8 attention is recorded, not priced",
    )
    head_dtype: Word = Field("", description="of the head; recorded, not priced")
    param_dtype: Word = Field("", description="where empty: f32 on xla, else that of compute")
    grad_dtype: Word = Field(
        "", description="where empty, f32; with f16 compute, f16; on xla that of the parameters"
    )
    master_dtype: Word = Field(
        "",
        description="of the optimizer's own copy, or none; where empty, none on xla and beside "
        "parameters in f32, else f32",
    )
    moments_dtype: Word = Field(
        "",
        description="of the optimizer's moments; where empty, f32; on xla, of the parameters",
    )
    optimizer: Word = Field("adam", description="adam, adafactor, muon, sgd, adam8bit")
    frozen: Annotated[tuple[str, ...] | None, BeforeValidator(_listed)] = Field(
        None, description="components that are not trained, with commas"
    )
    lora_rank: int = Field(0, ge=0, le=2**24, description="rank of adapters; the base is frozen")
    lora_targets: Annotated[tuple[str, ...] | None, BeforeValidator(_listed)] = Field(
        None, description="matrices that have adapters, with commas; all of the layers if empty"
    )
    library: Annotated[Library, BeforeValidator(_spelt)] = Field(
        "plain",
        description="whose layers and loss run op by op: plain, transformers, lit_gpt (2023), "
        "litgpt, prime_rl, scaling, automodel, automodel_bf16 (its loss in 16 bits), mlperf_nemo "
        "(LoRA), liger or megatron_zero3",
    )
    quantize: Annotated[Quantized, BeforeValidator(_spelt)] = Field(
        "none", description="how the frozen matrices beside adapters are stored: nf4 or int8"
    )
    expert_dispatch: Annotated[Literal["ragged", "capacity", "dense"], BeforeValidator(_spelt)] = (
        Field("ragged", description="ragged drops nothing; capacity pads each expert to its slots")
    )
    dispatcher: Literal["", "alltoall", "deepep", "hybridep", "ragged"] = Field(
        "",
        description="what sends tokens to experts: alltoall once per expert, others once per "
        "device; hybridep with weights of all experts",
    )
    grouped_kernel: Literal["", "fused"] = Field(
        "",
        description="fused: experts' products, activation and casts are one kernel",
    )
    capacity_factor: float | None = Field(
        None, gt=0, le=1e6, description="slots of an expert over its mean load"
    )
    mtp_layers: int = Field(0, ge=0, le=1000, description="layers of multi-token prediction")
    logit_chunks: int = Field(
        1, ge=1, le=10**6, description="pieces in which a microbatch's logits are made and used"
    )
    # What was measured.
    step_seconds: float | None = Field(None, gt=0, le=1e18, description="seconds per step")
    metric: Metric | None = Field(None, description="what `value` is, without `step_seconds`")
    value: float | None = Field(None, gt=0, le=1e18, description="the published figure")
    unit: str = Field("", description="`ms` where a step time is in milliseconds")
    memory_gib: float | None = Field(
        None, gt=0, le=1e9, description="peak GiB of the fullest device"
    )
    memory_kind: Literal["allocated", "reserved"] = Field(
        "allocated", description="whether `memory_gib` counts what the allocator keeps unused"
    )


NEEDED = tuple(name for name, field in RunRow.model_fields.items() if field.is_required())
"""Columns that no table can do without."""
FORMER = {"zero_stage": "zero", "chip": "hardware", "devices": "num_devices"}
"""Other names of columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """The rows of a table, as its cells, with the line of the file where each begins; `what` names
    it in messages, and `warnings` say what it has that the format does not."""

    what: str
    rows: tuple[Mapping[str, str], ...]
    lines: tuple[int, ...]
    warnings: tuple[str, ...] = ()


def read_table(path: Path) -> RunTable:
    """A CSV table of runs. Raises BadRequest where it cannot be read, lacks a column, or names two
    rows alike; what a single row has wrong is found when that is read."""
    table = boundary.read_table(path, "the table", remedy="give a CSV file")
    columns = [FORMER.get(name, name) for name in table.columns]
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise BadRequest(
            f"{table.what} lacks the column(s) {', '.join(missing)}; docs/runs.md has the format"
        )
    unread = [name for name in columns if name not in RunRow.model_fields]
    warnings = tuple(f"not read: {unknown('column', name, RunRow.model_fields)}" for name in unread)
    rows = tuple({FORMER.get(k, k): v for k, v in row.items()} for row in table.rows)
    _check_names(rows, table)
    return RunTable(what=table.what, rows=rows, lines=table.lines, warnings=warnings)


def _check_names(rows: Sequence[Mapping[str, str]], table: boundary.Table) -> None:
    """Raise BadRequest where two rows have one name, by which answers and charts tell them."""
    seen: dict[str, int] = {}
    for index, row in enumerate(rows):
        name = row["id"].strip()
        if name in seen:
            rule = f"line {table.lines[seen[name]]} has it, too; give every run an id of its own"
            raise BadRequest(f"{table.at(index)}: {WrongCell('id', name, rule)}")
        if name:
            seen[name] = index


def row_of(cells: Mapping[str, str]) -> RunRow:
    """The row that cells of a table say, an empty cell being a fact left open.

    Raises BadRequest that names the column, the value and what the column takes.
    """
    said = {name: text.strip() for name, text in cells.items() if text and text.strip()}
    try:
        return RunRow.model_validate(said)
    except ValidationError as error:
        first = first_mistake(error.errors(), said)
    name = first.place or str(first.errors[0]["loc"][0])
    if first.missing:
        raise WrongCell(name, "", "every run must state it")
    about = RunRow.model_fields[name].description
    raise WrongCell(name, said.get(name, ""), f"it must be {first.must_be} (the column: {about})")


def needed(row: RunRow, columns: Sequence[str], why: str) -> None:
    """Raise BadRequest where a row leaves a column empty that it needs."""
    for name in columns:
        if getattr(row, name) is None:
            raise WrongCell(name, "", why)
