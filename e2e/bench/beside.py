"""Two gateways at the same time on one core, for differences of a hundredth: whatever disturbs the machine disturbs both,
and each start of a process has a luck of its own with memory, so that both are started again and again."""

import random
from concurrent.futures import ThreadPoolExecutor
from math import sqrt
from statistics import mean, stdev

import peers
from load import wrk
from procs import Group, workdir


def compare(name, other, starts, seconds, say):
    """The ratio of CPU per request, `name` to `other`: {mean, error (of the mean, one sigma), ratios, cpu_us of both}."""
    ratios, costs = [], {name: [], other: []}
    for start in range(starts):
        cost = together([name, other], seconds)
        ratios.append(cost[name] / cost[other])
        for each, us in cost.items():
            costs[each].append(us)
        say(f"start {start + 1}/{starts} {name} / {other}: {ratios[-1]:.4f}")
    return {"mean": mean(ratios), "error": stdev(ratios) / sqrt(starts), "ratios": ratios,
            "cpu_us": {each: mean(us) for each, us in costs.items()}}


def together(names, seconds):
    """CPU per request of each, in microseconds, while all of them are under load."""
    names = random.sample(names, len(names))
    with workdir() as directory, Group() as group:
        peers.start_origins(group, directory)
        peers.start_sink(group, directory)
        running = [peers.start(group, name, directory) for name in names]
        for process in running:
            wrk(process.port, 1)
        with ThreadPoolExecutor(len(names)) as pool:
            return dict(zip(names, pool.map(lambda process: measure(process, seconds), running)))


def measure(process, seconds):
    before = process.cpu()
    load = wrk(process.port, seconds, connections=32)
    return (process.cpu() - before) * 1e6 / load["requests"]
