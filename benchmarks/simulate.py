"""How fast a serving simulation runs: published traces through Llama-3.1-70B on TP8 H100 replicas.

    python benchmarks/simulate.py TRACES [--rounds 3] [--tiles 20]

TRACES is a folder with the traces named below, as their projects publish them. Prints the median
and range of CPU and wall seconds of the simulation (reading the trace apart), what came of it, and
that on every trace each prompt token was computed or hit once, lost ones again, and exactly the
output tokens emitted. Targets: the 12,031 requests of Mooncake's conversation over 8 replicas with
prefix caching in under 10 s; the first 10,000 of Azure's conversation on 2 replicas in under 3 s;
cost linear in the steps, to 200,000 requests. Peers on such a machine in 2026-11: BLIS 38 s for
10,000 requests.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.plans import load_plan
from shardwise.models import load_model
from shardwise.planner.serve.replica import fleet_of
from shardwise.planner.simulate.metrics import completed, summary
from shardwise.planner.simulate.run import Outcome, SimulatedFleet, simulate
from shardwise.planner.simulate.traces import read_trace, tiled
from shardwise.plans import ServePlan
from shardwise.scheduling import Request
from shardwise.scheduling.forecast import pages_for

PLANS = Path(__file__).parent / "plans"
MOONCAKE = "mooncake_fast25_conversation.jsonl"
AZURE = "azure2023_conv.csv"
JOBS = {
    "Mooncake conversation, 8 replicas": ("simulate_mooncake.yaml", MOONCAKE, 0),
    "Azure conversation, first 10,000, 2 replicas": ("simulate_azure.yaml", AZURE, 10_000),
}
CONSERVED = {
    MOONCAKE: "simulate_mooncake.yaml",
    "mooncake_fast25_synthetic.jsonl": "simulate_mooncake.yaml",
    AZURE: "simulate_azure.yaml",
    "azure2023_code.csv": "simulate_azure.yaml",
    "vidur_splitwise_code.csv": "simulate_azure.yaml",
    "llmservingsim_sharegpt_llama-3.1-8b_300_sps10.hash16.jsonl": "simulate_azure.yaml",
}
POLICIES = ("chunked", "interleaved", "static", "disaggregated", "crowded")


def plan_of(name: str) -> ServePlan:
    """A committed plan."""
    plan = load_plan(PLANS / name)
    assert isinstance(plan, ServePlan)
    return plan


def fleet_for(plan: ServePlan) -> SimulatedFleet:
    """Its replicas."""
    hardware = Hardware(constants=plan.constants)
    return fleet_of(plan, load_model(plan.model), hardware.slice(plan.slice).slice)


def timed(
    requests: Sequence[Request], fleet: SimulatedFleet, **choices
) -> tuple[Outcome, float, float]:
    """The outcome, CPU seconds and wall seconds of one simulation."""
    cpu, wall = time.process_time(), time.perf_counter()
    outcome = simulate(requests, fleet, **choices)
    return outcome, time.process_time() - cpu, time.perf_counter() - wall


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.2f} s ({min(values):.2f}-{max(values):.2f})"


def speed(traces: Path, rounds: int) -> None:
    """The two jobs, interleaved."""
    jobs = {}
    for name, (plan_name, trace, most) in JOBS.items():
        plan = plan_of(plan_name)
        before = time.process_time()
        requests = read_trace(traces / trace, plan.scheduling.page_size, most)
        jobs[name] = (requests, fleet_for(plan))
        print(f"{name}: trace and plan read in {time.process_time() - before:.2f} s of CPU")
    cpus: dict[str, list[float]] = {name: [] for name in jobs}
    walls: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, (requests, fleet) in jobs.items():
            _, cpu, wall = timed(requests, fleet)
            cpus[name].append(cpu)
            walls[name].append(wall)
    for name, (requests, fleet) in jobs.items():
        told = summary(simulate(requests, fleet))
        print(f"\n{name}: CPU {spread(cpus[name])}, wall {spread(walls[name])}")
        print(
            f"  {told.completed:,} requests, {told.steps:,} steps in "
            f"{told.duration:,.0f} simulated s; hit rate {told.hit_rate:.1%}; "
            f"TTFT p50 {told.median_ttft_ms:.0f} ms, p99 {told.p99_ttft_ms:.0f} ms; "
            f"TPOT p50 {told.median_tpot_ms:.1f} ms"
        )


def linear(traces: Path, tiles: int) -> None:
    """The Azure job over and over, one after the other."""
    plan = plan_of("simulate_azure.yaml")
    requests = read_trace(traces / AZURE, plan.scheduling.page_size, 10_000)
    fleet = fleet_for(plan)
    print("\nrequests    steps        CPU s   us per request   ns per step")
    times = 1
    while times <= tiles:
        outcome, cpu, _ = timed(tiled(requests, times), fleet)
        steps = sum(r.record.step_count for r in outcome.replicas)
        count = times * len(requests)
        print(
            f"{count:8,}  {steps:9,}  {cpu:9.2f}  {cpu / count * 1e6:13.1f}  "
            f"{cpu / steps * 1e9:12.0f}"
        )
        times = times * 2 if times * 2 <= tiles or times == tiles else tiles


def singly(traces: Path) -> None:
    """Every step by itself: the same answer, and what running them together saves."""
    plan = plan_of("simulate_azure.yaml")
    requests = read_trace(traces / AZURE, plan.scheduling.page_size, 2000)
    fleet = fleet_for(plan)
    together, cpu, _ = timed(requests, fleet)
    single, slow, _ = timed(requests, fleet, single_steps=True)
    assert [j.finished for j in together.jobs] == [j.finished for j in single.jobs]
    print(f"\n2,000 requests step by step: the same answer in {slow / cpu:.1f} times the CPU time")


def policy_of(plan: ServePlan, policy: str) -> ServePlan:
    """The plan under another policy."""
    if policy == "crowded":
        return plan
    if policy == "disaggregated":
        return replace(plan, prefill_replicas=plan.replicas)
    wanted = {"policy": policy}
    if policy == "static":
        wanted |= {"prefix_cache": False, "admission": "reserve"}
    return replace(plan, scheduling=replace(plan.scheduling, **wanted))


def crowded(fleet: SimulatedFleet, requests: Sequence[Request]) -> SimulatedFleet:
    """The fleet with room for one and a half of the longest request, so that it must preempt."""
    config = fleet.pool.config
    longest = max(r.prompt + r.most for r in requests)
    config = replace(config, pages=3 * pages_for(longest, config.page_size) // 2)
    return replace(fleet, pool=replace(fleet.pool, config=config))


def conserved(traces: Path) -> None:
    """Every trace under every policy: all tokens are accounted for."""
    print(
        "\ntrace, policy: prefilled + hit + decoded = prompt + emitted - requests + lost "
        "(the last token of each request is not put through the model)"
    )
    for trace, plan_name in CONSERVED.items():
        plan = plan_of(plan_name)
        requests = read_trace(traces / trace, plan.scheduling.page_size)
        for policy in POLICIES:
            fleet = fleet_for(policy_of(plan, policy))
            outcome = simulate(requests, crowded(fleet, requests) if policy == "crowded" else fleet)
            done = completed(outcome)
            assert len(done) == len(requests), [j.refusal for j in outcome.jobs if j.refusal][:1]
            for job in done:
                computed = job.prefilled + job.hit + job.decoded
                assert job.emitted == job.request.output
                assert computed == job.request.prompt + job.emitted - 1 + job.lost
            told = summary(outcome)
            decoded = sum(job.decoded for job in done)
            computed = told.prefilled_tokens + told.hit_tokens + decoded
            prompt, emitted = told.total_input_tokens, told.total_output_tokens
            assert computed == prompt + emitted - len(done) + told.recomputed_tokens
            assert prompt == sum(r.prompt for r in requests)
            assert emitted == sum(r.output for r in requests)
            print(
                f"  {trace}, {policy}: {told.prefilled_tokens:,} + {told.hit_tokens:,} + "
                f"{decoded:,} = {prompt:,} + {emitted:,} - {len(done):,} + "
                f"{told.recomputed_tokens:,}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiles", type=int, default=20)
    options = parser.parse_args()
    if not (options.traces / MOONCAKE).exists():
        sys.exit(f"{options.traces} has no {MOONCAKE}")
    speed(options.traces, options.rounds)
    linear(options.traces, options.tiles)
    singly(options.traces)
    conserved(options.traces)


if __name__ == "__main__":
    main()
