"""Runs a scheduler as an engine would, one step a tick, and checks everything after each."""

from dataclasses import dataclass, field

from shardwise.scheduling import Request, Scheduler, SchedulerConfig, Sequence, StepPlan

MOST_STEPS = 20_000


def conserved(job: Sequence) -> bool:
    """Whether the tokens of a sequence that has finished add up."""
    computed = job.prefilled + job.hit + job.decoded
    emitted = job.emitted == job.request.output
    return emitted and computed == job.request.prompt + job.emitted - 1 + job.lost


@dataclass
class Driven:
    """What came of the requests: their states, the plans in order, who started when."""

    scheduler: Scheduler
    jobs: list[Sequence]
    plans: list[StepPlan] = field(default_factory=list)


def config(**changes) -> SchedulerConfig:
    values = {"pages": 20, "page_size": 4, "batch": 4, "budget": 8, "margin": 0.0, **changes}
    if values.get("policy") == "static":
        values |= {"prefix_cache": False, "admission": "reserve"}
    return SchedulerConfig(**values)


def request(number: int, prompt: int, output: int, arrival: float = 0, **more) -> Request:
    return Request(id=number, arrival=arrival, prompt=prompt, output=output, **more)


def drive(setting: SchedulerConfig, requests, accept=lambda job: 0, check: bool = True) -> Driven:
    """Every request to its end. A prefill scheduler's caches are fetched three ticks later."""
    scheduler = Scheduler(setting)
    coming = sorted(requests, key=lambda r: (r.arrival, r.id))
    driven = Driven(scheduler, [])
    fetched: list[tuple[int, Sequence]] = []
    now = 0
    for _ in range(MOST_STEPS):
        while coming and coming[0].arrival <= now:
            driven.jobs.append(scheduler.add(coming.pop(0), now))
        for moment, job in list(fetched):
            if moment <= now:
                scheduler.hand_over(job)
                job.finished = now
                fetched.remove((moment, job))
        plan = scheduler.schedule(now)
        now += 1
        if check:
            scheduler.check()
        if plan is None:
            if not coming and not fetched:
                break
            continue
        driven.plans.append(plan)
        accepted = {job: accept(job) for job in scheduler.decoding} if plan.shape.decodes else {}
        result = scheduler.postprocess(plan, now, accepted=accepted)
        fetched += [(now + 3, job) for job in result.handoffs]
        if check:
            scheduler.check()
    return driven
