"""Several processes as one JAX: who they are, and joining them.

JAX finds the others by itself under SLURM, Open MPI, GKE and on Cloud TPU pods; elsewhere they are
given a coordinator's address, their number and each its own. On CPUs they talk through gloo.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import jax

from shardwise.errors import BadRequest

HEARTBEAT_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """The processes of a run: `count` of them, this one `index`, met at `coordinator` HOST:PORT;
    None leaves a value to JAX's detection."""

    coordinator: str | None = None
    count: int | None = None
    index: int | None = None

    def __post_init__(self) -> None:
        if self.coordinator is not None and not re.fullmatch(r"\S+:\d{1,5}", self.coordinator):
            raise BadRequest(
                f"--coordinator '{self.coordinator}' is not HOST:PORT; give the address of process "
                "0, like 10.0.0.1:8476"
            )
        if self.count is not None and self.count < 1:
            raise BadRequest(f"--processes is {self.count}; it must be at least 1")
        if self.index is not None and self.count is None:
            raise BadRequest("--process is given without --processes; give how many there are")
        if self.index is not None and not 0 <= self.index < (self.count or 1):
            raise BadRequest(f"--process {self.index} is outside 0..{(self.count or 1) - 1}")
        if self.index is not None and self.coordinator is None:
            raise BadRequest("--process is given without --coordinator HOST:PORT; give both")


def detected(environment: Mapping[str, str] | None = None) -> bool:
    """Whether the environment says that there are several processes, in a way that JAX reads.

    >>> detected({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}), detected({"SLURM_JOB_ID": "7"})
    (True, False)
    """
    env = os.environ if environment is None else environment
    counted = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
    several = any(env.get(name, "1").isdigit() and int(env.get(name, "1")) > 1 for name in counted)
    hosts = env.get("TPU_WORKER_HOSTNAMES", "").count(",") > 0
    return several or hosts or "JAX_COORDINATOR_ADDRESS" in env


def use_devices(cpu_devices: int | None) -> None:
    """Run on so many virtual CPU devices, or on what is here; before JAX is first used. Without an
    accelerator (JAX sets TPU_SKIP_MDS_QUERY where it sees no TPU, and so do clusters with TPUs)
    libtpu would log errors: it is left out."""
    if cpu_devices is not None:
        use_cpu(cpu_devices)
        return
    others = find_spec("jax_plugins") or has_accelerator(Path("/dev"))
    chosen = jax.config.values.get("jax_platforms")
    if "TPU_SKIP_MDS_QUERY" in os.environ and not others and not chosen:
        jax.config.update("jax_platforms", "cpu")


def has_accelerator(devices: Path) -> bool:
    """Whether Linux lists a TPU (accel, vfio) or a card of NVIDIA's or AMD's (kfd)."""
    return any(
        next(devices.glob(name), None) for name in ("nvidia*", "accel*", "vfio/[0-9]*", "kfd")
    )


def use_cpu(devices: int) -> None:
    """Run on so many virtual CPU devices; before JAX is first used."""
    if devices < 1:
        raise BadRequest(f"--cpu-devices is {devices}; it must be at least 1")
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)


SHARE = "XLA_CLIENT_MEM_FRACTION"
"""Of the environment: the share of each card's memory that JAX takes at its start, 0.75 unless
said."""
FULL = ("RESOURCE_EXHAUSTED", "OUT_OF_MEMORY", "out of memory")
"""What messages of XLA and of CUDA have where memory was not to be had."""


def use_memory(share: float) -> None:
    """Take so much of each card's memory; before JAX is first used."""
    if not 0 < share <= 1:
        raise BadRequest(f"--memory-share is {share:g}; it must be above 0 and at most 1")
    os.environ.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)  # its former name, refused beside it
    os.environ[SHARE] = f"{share:g}"


@contextmanager
def within_memory() -> Iterator[None]:
    """Opening what stays on devices: BadRequest says what to do where they have no room for it."""
    try:
        yield
    except RuntimeError as error:
        said = str(error)
        if not any(word in said for word in FULL):
            raise
        raise BadRequest(
            "the device is out of memory: JAX takes 75 % of a card unless told "
            "otherwise, and another process may hold the rest. Give each process its part with "
            "--memory-share 0.4, or ask for fewer --kv-tokens or narrower --weights; the device "
            f"reported: {' '.join(said.split())[:300]}"
        ) from None


def connect(group: ProcessGroup) -> None:
    """Join the other processes; before JAX is first used."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        group.coordinator, group.count, group.index, heartbeat_timeout_seconds=HEARTBEAT_SECONDS
    )


def devices_here() -> tuple[int, str]:
    """How many devices there are, and what JAX calls them."""
    return jax.device_count(), jax.devices()[0].device_kind
