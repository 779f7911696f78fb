"""A server whose times are four numbers, and fleets of it."""

from dataclasses import dataclass

from shardwise.planner.simulate.cost import DecodeLine, ReplicaModel, StepShape
from shardwise.planner.simulate.run import Pool, SimulatedFleet
from shardwise.scheduling import SchedulerConfig


@dataclass(frozen=True)
class Linear:
    """Seconds of a step: `base`, plus so much for each token read, decoded and prefilled."""

    base: float = 0.01
    read: float = 1e-7
    decode: float = 1e-5
    prefill: float = 1e-5
    pairs: float = 1e-10
    move: float = 1e-6
    knee: float = float("inf")
    """From this context on reading costs twice as much."""

    def seconds(self, shape: StepShape) -> float:
        line = self.decode_line(shape.decodes, shape.decode_context)
        took = line.base + line.per_token * shape.decode_context
        took += self.decode * (shape.decode_tokens - shape.decodes)
        took += self.prefill * shape.prefill_tokens + self.pairs * shape.prefill_pairs
        return took

    def decode_line(self, decodes: int, context: int) -> DecodeLine:
        base = self.base + self.decode * decodes
        if context < self.knee:
            return DecodeLine(base, self.read, self.knee)
        return DecodeLine(base - self.read * self.knee, 2 * self.read)

    def transfer_seconds(self, tokens: int) -> float:
        return self.move * tokens

    def host_seconds(self, tokens: int) -> float:
        return self.move * tokens


def scheduler(**changes) -> SchedulerConfig:
    values = {"pages": 1000, "page_size": 16, "batch": 8, "budget": 128, **changes}
    if values.get("policy") == "static":
        values |= {"prefix_cache": False, "admission": "reserve"}
    return SchedulerConfig(**values)


def pool(cost=None, replicas=1, routing="round_robin", usd=None, chips=1, **changes) -> Pool:
    setting = scheduler(**changes)
    model = ReplicaModel(
        cost=cost or Linear(),
        kv_tokens=setting.pages * setting.page_size,
        chips=chips,
        usd_per_hour=usd,
    )
    return Pool(model=model, config=setting, replicas=replicas, routing=routing)


def fleet(cost=None, **changes) -> SimulatedFleet:
    return SimulatedFleet(pool=pool(cost, **changes))
