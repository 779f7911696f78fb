"""Sets of compiler flags that may make a step on TPUs faster, each with its source.

`plan train --compile N --tune` compiles the best plan with each and says which pay; the flags of
MaxText's rows in docs/maxtext.md are those of its v5p scripts, here by what they are for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

V5P = "LIBTPU_INIT_ARGS of AI-Hypercomputer/maxtext@0777510 MaxText/configs/v5p/128b.sh"
TRILLIUM = "DENSE_VMEM_LIMIT_FLAG of MaxText's benchmarks/xla_flags_library.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagSet:
    """Flags that belong together; `chips` are those they are for, all TPUs where none is named."""

    name: str
    about: str
    options: Mapping[str, str]
    source: str
    chips: Sequence[str] = ()


FLAG_SETS = (
    FlagSet(
        name="async gathers",
        about="weights are gathered beside matmuls, in steps",
        options={
            "xla_enable_async_all_gather": "true",
            "xla_tpu_enable_async_collective_fusion": "true",
            "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
            "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
            "xla_tpu_overlap_compute_collective_tc": "true",
        },
        source=V5P,
    ),
    FlagSet(
        name="sums of gradients",
        about="all-reduces of gradients beside the backward pass, whatever their sizes",
        options={
            "xla_tpu_enable_data_parallel_all_reduce_opt": "true",
            "xla_tpu_data_parallel_opt_different_sized_ops": "true",
        },
        source=V5P,
    ),
    FlagSet(
        name="pipelined backward",
        about="a layer's weights are gathered while the next one's backward pass runs",
        options={
            "xla_tpu_enable_ag_backward_pipelining": "true",
            "xla_enable_async_collective_permute": "true",
        },
        source=V5P,
    ),
    FlagSet(
        name="whole einsums",
        about="no chains of permutes in place of exchanges over tensor",
        options={"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"},
        source="MaxText's DISABLE_COLLECTIVE_MATMUL",
    ),
    FlagSet(
        name="gathers apart",
        about="gathers are not fused over the two cores of a chip",
        options={"xla_tpu_megacore_fusion_allow_ags": "false"},
        source=V5P,
        chips=("v4", "v5p"),
    ),
    FlagSet(
        name="more VMEM",
        about="96 MiB of VMEM for a fusion's operands",
        options={"xla_tpu_scoped_vmem_limit_kib": "98304"},
        source=TRILLIUM,
        chips=("v6e",),
    ),
)


def flag_sets(chip: str) -> tuple[FlagSet, ...]:
    """The sets for a TPU, by the catalogue's name of it.

    >>> [one.name for one in flag_sets("v5e")]
    ['async gathers', 'sums of gradients', 'pipelined backward', 'whole einsums']
    """
    return tuple(one for one in FLAG_SETS if not one.chips or chip in one.chips)


def together(sets: Sequence[FlagSet]) -> dict[str, str]:
    """The flags of several sets."""
    return {name: value for one in sets for name, value in one.options.items()}
