"""Measures Serin beside the bare pingora proxy, nginx, HAProxy, Envoy and Traefik, and checks the bars of the project.

One worker each on core 0, load and upstreams on core 1, loopback only. Writes latest.md and latest.json into
target/bench. Exit status: 0 all bars held, 1 a bar was missed, 2 it could not be measured.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from statistics import median

import beside
import peers
import rounds
import scenarios
from procs import runnable

PARTS = ["plain", "logs", "traces", "slow-upstream", "idle", "reload"]
STARTED = time.monotonic()


def say(text):
    print(f"[{time.monotonic() - STARTED:5.0f} s] {text}", flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by comma [%(default)s]")
    parser.add_argument("--peers", default=",".join(peers.NAMES), help="proxies, by comma [%(default)s]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="of load per proxy and round, whole [%(default)s]")
    parser.add_argument("--no-gate", action="store_true", help="explore: Serin may be absent, and missed bars do not fail")
    args = parser.parse_args()
    args.only, args.peers = args.only.split(","), args.peers.split(",")
    if unknown := (set(args.only) - set(PARTS)) | (set(args.peers) - set(peers.NAMES)):
        parser.error(f"unknown: {', '.join(unknown)}; parts: {', '.join(PARTS)}; proxies: {', '.join(peers.NAMES)}")
    return args


class Report:
    """Collects Markdown, raw results and the bars."""

    def __init__(self, header):
        self.sections, self.raw, self.bars = [header], {}, []

    def add(self, part, raw, markdown):
        self.raw[part] = raw
        self.sections.append(markdown)

    def bar(self, what, value, limit, unit):
        self.bars.append({"what": what, "value": value, "limit": limit, "unit": unit, "held": value <= limit})

    def write(self):
        """Writes both files; true if every bar held."""
        if self.bars:
            lines = ["## Bars", "", "| what | measured | at most | |", "|---|---:|---:|---|"]
            lines += [f"| {b['what']} | {b['value']:.{3 if b['limit'] < 1.1 else 2}f} {b['unit']} | {b['limit']:g} {b['unit']} | "
                      f"{'held' if b['held'] else '**MISSED**'} |" for b in self.bars]
            self.sections.append("\n".join(lines) + "\n")
        directory = os.path.join(peers.TARGET, "bench")
        os.makedirs(directory, exist_ok=True)
        text = "\n".join(self.sections)
        with open(os.path.join(directory, "latest.md"), "w") as file:
            file.write(text)
        with open(os.path.join(directory, "latest.json"), "w") as file:
            json.dump({**self.raw, "bars": self.bars}, file, indent=1)
        print(f"\n{text}\nwritten to {directory}/latest.md and latest.json")
        return all(b["held"] for b in self.bars)


def run_plain(args, report):
    results = rounds.compare(args.peers, args.rounds, args.seconds, False, say)
    versions = {name: peers.version(name) for name in results}
    report.add("plain", results, rounds.table(results, "Access logs off", versions))
    for name, other, limit in (("serin", "bare", 1.10), ("serin", "envoy", 0.75), ("guarded", "bare", 1.15)):
        if name in results and other in results:
            report.bar(f"CPU per request, {name} / {other}", results[name]["ratio"][other], limit, "x")
    if "serin" in results:
        report.bar("what Serin lacks of the common rules", len(results["serin"]["missing"]), 0, "rules")


def run_logs(args, report):
    results = rounds.compare(args.peers, args.rounds, args.seconds, True, say)
    versions = {name: peers.version(name) for name in results}
    report.add("logs", results, rounds.table(results, "Access logs on (JSON, to tmpfs; bare has none)", versions))


def run_traces(args, report):
    if "serin" not in args.peers:
        return
    results = {name: beside.compare(name, "serin", 2 * args.rounds, 2 * args.seconds, say) for name in peers.BESIDE}
    rows = [f"| {name} | {r['cpu_us'][name]:.1f} | {r['cpu_us']['serin']:.1f} | {r['mean']:.4f} | {r['error']:.4f} |"
            for name, r in results.items()]
    report.add("traces", results, f"## Spans to a local receiver, of 1 % and of all requests\n\nEach beside a gateway without, "
               f"on the same core at the same time; {2 * args.rounds} starts of {2 * args.seconds} s. `again` is another one "
               "without: what the method gets wrong.\n\n| gateway | CPU us/request | without | x | error of the mean |\n"
               "|---|---:|---:|---:|---:|\n" + "\n".join(rows) + "\n")
    for name, limit in (("traced-1", 1.01), ("traced-100", 1.15)):
        report.bar(f"CPU per request, {name} / serin", results[name]["mean"], limit, "x")


def run_slow(args, report):
    if "serin" not in args.peers:
        return
    means = scenarios.slow_upstream(min(args.rounds, 3), args.seconds, say)
    rows = [f"| {pick} | {ms:.1f} | {ms / means['round_robin']:.2f} |" for pick, ms in means.items()]
    report.add("slow-upstream", means, "## Three upstreams, one ten times slower (20, 20, 200 ms), concurrency 32\n\n"
               "| pick | mean ms | x round_robin |\n|---|---:|---:|\n" + "\n".join(rows) + "\n")
    for pick, limit in (("peak_ewma", 0.30), ("p2c", 0.40)):
        report.bar(f"mean latency, {pick} / round_robin", means[pick] / means["round_robin"], limit, "x")


def run_idle(args, report):
    sizes = scenarios.idle(args.peers, say)
    rows = [f"| {name} | {size / 1024:.1f} |" for name, size in sizes.items()]
    report.add("idle", sizes, f"## Memory per idle keep-alive connection ({scenarios.IDLE_CONNECTIONS} of them)\n\n"
               "| proxy | KiB |\n|---|---:|\n" + "\n".join(rows) + "\n")
    if "serin" in sizes:
        report.bar("idle connection, Serin", sizes["serin"] / 1024, 16, "KiB")


def run_reload(args, report):
    if "serin" not in args.peers:
        return
    r = scenarios.reload(20, say)
    factor = r["p99_reload_us"] / r["p99_quiet_us"]
    alone, loaded = (f"{median(r[kind]) * 1e3:.0f} ms (at worst {max(r[kind]) * 1e3:.0f} ms)" for kind in ("alone", "loaded"))
    report.add("reload", r, f"## Reload of {scenarios.ROUTES} routes, {len(r['alone'])} in a row\n\nFrom the write to the "
               f"new revision: {alone}; on the same core with {scenarios.RATE} requests/s: {loaded}. p99 of the "
               f"{r['requests']} requests during reloads {r['p99_reload_us']:.0f} us, without {r['p99_quiet_us']:.0f} us.\n")
    report.bar("reload, median", median(r["alone"]) * 1e3, 300, "ms")
    report.bar("p99 during reload / without", factor, 2, "x")


def prepare(args):
    """Checks that it can be measured here; returns the report's header."""
    for core in (0, 1):
        if core not in os.sched_getaffinity(0):
            raise RuntimeError(f"needs cores 0 and 1; may not use core {core}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * scenarios.IDLE_CONNECTIONS + 1000:
        raise RuntimeError(f"needs {2 * scenarios.IDLE_CONNECTIONS + 1000} file descriptors; the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if peers.SERINS & set(args.peers) and not os.access(peers.SERIN, os.X_OK):
        if not args.no_gate:
            raise RuntimeError(f"{peers.SERIN} is not there: cargo build --profile dist -p serin, or set SERIN_BIN")
        say(f"{peers.SERIN} is not there: measuring without Serin")
        args.peers = [name for name in args.peers if name not in peers.SERINS]
    busy = max(runnable() for _ in range(50) if time.sleep(0.02) is None)
    note = f"\n**{busy} other tasks were running: take the figures with care, the ratios less so.**\n" if busy else ""
    if busy:
        say(f"this machine is busy ({busy} other tasks are running)")
    return (f"# Serin bench, {time.strftime('%Y-%m-%d %H:%M')}\n\n64 connections, 64-byte body, one worker on core 0, "
            f"load and upstreams on core 1; medians of {args.rounds} interleaved rounds of {args.seconds} s; ratios are "
            f"medians of the ratios within a round; CPU as the kernel accounts it to the process.\n{note}")


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = Report(prepare(args))
    runs = {"plain": run_plain, "logs": run_logs, "traces": run_traces, "slow-upstream": run_slow, "idle": run_idle, "reload": run_reload}
    failed = []
    for part in args.only:
        say(f"== {part}")
        try:
            runs[part](args, report)
        except (RuntimeError, OSError, KeyError, subprocess.SubprocessError) as error:
            say(f"{part} could not be measured: {error}")
            report.add(part, None, f"## {part}\n\nCould not be measured: {error}\n")
            failed.append(part)
    held = report.write()
    return 2 if failed else 0 if held or args.no_gate else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except RuntimeError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(2)
