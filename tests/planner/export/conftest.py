"""Plans that the tests of several targets export."""

from unittest.mock import patch

import pytest
from tests.planner.export.exporting import MODELS, STORED_F32, a_plan

from shardwise.models import params_total
from shardwise.plans.software import torchtitan


@pytest.fixture(autouse=True, scope="session")
def registered():
    """The models of these tests are in TorchTitan's registry, too."""
    own = tuple(
        torchtitan.Flavor(
            module=name,
            name=name,
            layers=cfg.layers,
            d_model=cfg.d_model,
            vocabulary=cfg.vocabulary,
            parameters=params_total(cfg),
        )
        for name, cfg in MODELS.items()
    )
    known = torchtitan.flavors()
    with patch.object(torchtitan, "flavors", lambda: (*known, *own)):
        yield


@pytest.fixture
def two_slices():
    """Two slices: replicas across, FSDP and sequence-parallel tensor inside."""
    mesh = {"replica": 2, "fsdp": 16, "tensor": 4}
    return a_plan(
        "dense", "2*v5e:8x8", mesh, microbatches=2, dtypes=STORED_F32, remat="block", zero=0
    )


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
