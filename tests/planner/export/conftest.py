"""Plans that the tests of several targets export."""

import pytest
from tests.planner.export.exporting import STORED_F32, a_plan


@pytest.fixture
def two_slices():
    """Two slices: replicas across, FSDP and sequence-parallel tensor inside."""
    mesh = {"replica": 2, "fsdp": 16, "tensor": 4}
    return a_plan("dense", "2*v5e:8x8", mesh, microbatches=2, dtypes=STORED_F32, remat="block")


@pytest.fixture
def megatron_plan():
    """DP 16 = data 4 x expert 4, with the distributed optimizer."""
    return a_plan(
        "moe",
        "4*h100:8",
        {"data": 4, "expert": 4, "tensor": 2},
        storage_axes=("fsdp",),
        microbatches=4,
        expert_dispatch="ragged",
    )
