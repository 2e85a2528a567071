"""The main comparison: every proxy in turn, round after round, so that what disturbs the machine disturbs them all."""

import os
from statistics import median

import peers
from load import wrk
from probe import probe
from procs import Group, workdir

COLUMNS = ("cpu_us", "rps", "p50_us", "p99_us", "rss")


def compare(names, rounds, seconds, logs, say):
    """Name -> {medians of COLUMNS, `missing`, `ratio` by other name, `logged` lines per request}."""
    with workdir() as directory, Group() as group:
        peers.start_origins(group, directory)
        running, missing = {}, {}
        for name in names:
            say(f"start and probe {name}")
            running[name] = peers.start(group, name, directory, logs)
            missing[name] = [] if name == "bare" else probe(running[name].port)
            wrk(running[name].port, 1)
        samples = {name: [] for name in names}
        for turn in range(rounds):
            for name in names:
                sample = measure(running[name], seconds)
                samples[name].append(sample)
                say(f"round {turn + 1}/{rounds} {name}: {sample['cpu_us']:.1f} us CPU, {sample['rps']:.0f} requests/s")
    return {name: summary(name, samples, missing[name]) for name in names}


def measure(process, seconds):
    """One round: a warm-up, then as many requests as are answered."""
    wrk(process.port, 1)
    if process.log_file:
        open(process.log_file, "a").close()
        os.truncate(process.log_file, 0)
    before = process.cpu()
    load = wrk(process.port, seconds)
    cpu = process.cpu() - before
    sample = {"cpu_us": cpu * 1e6 / load["requests"], "rps": load["requests"] * 1e6 / load["duration_us"],
              "p50_us": load["p50_us"], "p99_us": load["p99_us"], "rss": process.rss()}
    if process.log_file:
        sample["logged"] = lines(process.log_file) / load["requests"]
    return sample


def lines(path):
    with open(path, "rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def summary(name, samples, missing):
    """Medians; ratios are medians of the ratios within a round."""
    mine = samples[name]
    result = {column: median(sample[column] for sample in mine) for column in mine[0]}
    result["missing"] = missing
    result["ratio"] = {other: median(a["cpu_us"] / b["cpu_us"] for a, b in zip(mine, theirs))
                       for other, theirs in samples.items()}
    return result


def table(results, title, versions):
    """The results as Markdown."""
    lines = [f"## {title}", "",
             "| proxy | CPU us/request | x bare | x Envoy | requests/s | p50 us | p99 us | RSS MiB | equivalent |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---|"]
    for name, r in results.items():
        ratios = [f"{r['ratio'][other]:.2f}" if other in r["ratio"] else "-" for other in ("bare", "envoy")]
        same = "routes nothing" if name == "bare" else "yes" if not r["missing"] else "no: " + ", ".join(r["missing"])
        if r.get("logged", 1) < 0.95:
            same += f"; only {r['logged']:.0%} of requests logged"
        lines.append(f"| {name} ({versions[name]}) | {r['cpu_us']:.1f} | {ratios[0]} | {ratios[1]} | {r['rps']:.0f} "
                     f"| {r['p50_us']:.0f} | {r['p99_us']:.0f} | {r['rss'] / 2**20:.1f} | {same} |")
    return "\n".join(lines) + "\n"
