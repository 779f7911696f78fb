"""Inside the child: StableHLO text that was saved, compiled for other devices as it is.

Shardings, donation, scopes and source lines are the text's own, so nothing is traced again. JAX has
no public door for a module that is lowered already; what its own `Lowered.compile` calls is called
here (`jax._src.compiler`, as it is in jax 0.10.2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.errors import BadRequest
from shardwise.profiler.ahead.user import UserProgram


def saved_module(devices: Sequence[Any], path: str, mesh: Mapping[str, int]) -> UserProgram:
    """The module in a file, on the devices, which are in the order of the mesh."""
    import jax
    import numpy as np

    array = np.array(devices, dtype=object).reshape(tuple(mesh.values()))
    text = Path(path).read_text(encoding="utf-8")
    function = _SavedModule(text=text, devices=tuple(devices))
    return UserProgram(function=function, arguments=(), mesh=jax.sharding.Mesh(array, tuple(mesh)))


@dataclass(frozen=True, slots=True)
class _SavedModule:
    """Stands for a jitted function and for what it lowers to."""

    text: str
    devices: tuple[Any, ...]

    def lower(self) -> "_SavedModule":
        return self

    def as_text(self, debug_info: bool = True) -> str:
        return self.text

    def compile(self, compiler_options: Mapping[str, Any]) -> "_SavedExecutable":
        import numpy as np
        from jax._src import compiler
        from jax._src.interpreters import mlir
        from jaxlib import xla_client
        from jaxlib.mlir import ir

        with mlir.make_ir_context():
            try:
                module = ir.Module.parse(self.text)
            except ir.MLIRError as error:
                first = (str(error).strip().splitlines() or ["it ends early"])[0]
                raise BadRequest(
                    f"the StableHLO text cannot be read: {first[:300]}; save it anew with "
                    "`lowered.as_text(debug_info=True)` of the JAX that is installed here"
                ) from None
            options = compiler.get_compile_options(
                1,
                len(self.devices),
                np.array(self.devices, dtype=object).reshape(1, -1),
                env_options_overrides=dict(compiler_options),
            )
            made = compiler.backend_compile_and_load(
                self.devices[0].client, module, xla_client.DeviceList(self.devices), options, []
            )
        return _SavedExecutable(made)


@dataclass(frozen=True, slots=True)
class _SavedExecutable:
    """An executable with the words of `jax.stages.Compiled`."""

    made: Any

    def as_text(self) -> str:
        return "\n\n".join(module.to_string() for module in self.made.hlo_modules())

    def memory_analysis(self) -> Any:
        return self.made.get_compiled_memory_stats()

    def cost_analysis(self) -> Any:
        return self.made.cost_analysis()
