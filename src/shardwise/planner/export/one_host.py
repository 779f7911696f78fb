"""Servers that share a host: each its own devices and port, started by one loop of the script.

Servers of several hosts, and those that take a host each, are started one by one as before.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardwise.planner.export.server_program import ServerPool

DEVICES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}
"""The variable that lists a process's devices, by the chip's vendor (CUDA C++ Programming Guide;
ROCm, "GPU isolation techniques")."""
_FIRST_PORT = 8001  # a router has 8000
_HOST = "${HOST:-${SLURM_NODEID:-0}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedHost:
    """How the servers of a pool share hosts: `each` devices a server, `per_host` servers a host;
    before them `first` servers and `device` devices of another pool lie on the same host."""

    servers: int
    each: int
    per_host: int
    variable: str
    first: int = 0
    device: int = 0

    @property
    def alone(self) -> bool:
        """Whether one host has all of them."""
        return self.servers <= self.per_host

    def numbered(self, start: int, step: int = 1) -> str:
        """A number of each server, in the words of the loop."""
        times = "N" if step == 1 else f"N * {step}"
        return f"$(({start} + {times}))" if start else "$N" if step == 1 else f"$(({times}))"

    def urls(self) -> list[str]:
        """Where each listens, if one host has them all."""
        return [f"http://localhost:{_FIRST_PORT + self.first + n}" for n in range(self.servers)]

    def looped(self, lines: Sequence[str], ports: Mapping[str, int]) -> list[str]:
        """The lines of the command of one server as a loop over those of a host; `ports` are
        variables and flags of which each server has its own, with the first number of each."""
        command, *rest = (re.sub(r" --port=\S+", "", line) for line in lines)
        own = {name: self.numbered(port + self.first) for name, port in ports.items()}
        own["--port"] = self.numbered(_FIRST_PORT + self.first)
        said = [f"{name}={number}" for name, number in own.items()]
        flags = [one for one in said if one.startswith("--")]
        start = [f"{self.variable}={self._devices()}", *(one for one in said if one not in flags)]
        here, end = min(self.servers, self.per_host), "&\ndone\nwait"
        head = [f"for N in $(seq 0 {here - 1})", "do"]
        if not self.alone:  # the last host may have fewer
            head.insert(
                0, "# on each host: HOST is its number, from 0; srun --ntasks-per-node=1 says it"
            )
            head.append(f"[ $(({_HOST} * {self.per_host} + N)) -lt {self.servers} ] || break")
        first = "\n".join([*head, " ".join([*start, command])])
        if "<<" not in rest[-1]:
            return [first, *rest, *flags[:-1], f"{flags[-1]} {end}"]
        before, text = rest[-1].split("\n", 1)
        return [first, *rest[:-1], *flags, f"{before} &\n{text}{end[1:]}"]

    def _devices(self) -> str:
        start = self.numbered(self.device, self.each)
        if self.each == 1:
            return start
        return f"$(seq -s , {start} {self.numbered(self.device + self.each - 1, self.each)})"


def hosts_of(pools: Sequence[ServerPool]) -> dict[str, SharedHost]:
    """By role how its servers share hosts; nothing of a role whose servers take whole hosts. Where
    one host has those of both roles, they share it."""
    found = {pool.role: shared for pool in pools if (shared := _shared(pool))}
    if len(found) < len(pools) or len(pools) == 1:
        return {role: one for role, one in found.items() if one.servers > 1}
    first, second = (found[pool.role] for pool in pools)
    chips = {pool.piece.chip.id for pool in pools}
    devices = [one.servers * one.each for one in (first, second)]
    if len(chips) == 1 and sum(devices) <= first.per_host * first.each:
        found[pools[1].role] = replace(second, first=first.servers, device=devices[0])
        return found
    return {role: one for role, one in found.items() if one.servers > 1}


def _shared(pool: ServerPool) -> SharedHost | None:
    """None where two servers of a pool do not fit on a host."""
    chip = pool.piece.chip
    variable, each = DEVICES.get(chip.vendor), pool.chips_per_host * chip.jax_devices_per_chip
    per_host = chip.chips_per_host * chip.jax_devices_per_chip // each
    if variable is None or pool.hosts > 1 or per_host < 2:
        return None
    return SharedHost(servers=pool.servers, each=each, per_host=per_host, variable=variable)


def servers_in(words: Sequence[str]) -> int | None:
    """How many servers the loop around a command starts, of all hosts; None where there is none."""
    if "-lt" in words and (most := words[words.index("-lt") + 1 :][:1]) and most[0].isdigit():
        return int(most[0])
    if "for" not in words or "in" not in words[words.index("for") :]:
        return None
    start = words.index("in", words.index("for")) + 1
    end = next((i for i in range(start, len(words)) if words[i] == "do"), start)
    listed = [word.rstrip(";)") for word in words[start:end] if word != ";"]
    numbers = [int(word) for word in listed if word.isdigit()]
    if listed and listed[0] == "$(seq" and numbers:
        low = numbers[0] if len(numbers) > 1 else 1
        return max(0, numbers[-1] - low + 1) or None
    return len(listed) or None
