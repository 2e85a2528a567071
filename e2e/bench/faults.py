"""What users see while upstreams fail: the same faults behind Serin and behind Envoy, at a steady rate of requests.

Each scenario starts the gateway and the upstreams anew, lets them serve well for some seconds, does the damage, and goes
on. Writes faults.md and faults.json into target/bench. Exit status 1: Serin was worse than Envoy in a scenario.
"""

import argparse
import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys

import peers
from load import HOST
from paced import Loop
from procs import LOAD_CORE, PROXY_CORE, Group, Process, workdir

V1, V2 = [19021, 19022, 19023], 19024
PORTS = {"serin": 18021, "envoy": 18022}
ADMIN = {"serin": 18121}
WARM_S, DAMAGE_S = 4, 10
WORK_MS = 5


class World:
    """Three instances of v1, a canary that gets a tenth, and the gateway in front of them."""

    def __init__(self, group, directory, gateway, scenario):
        self.group, self.directory, self.scenario = group, directory, scenario
        self.upstreams = {port: self.upstream(port, "v2" if port == V2 else "v1") for port in [*V1, V2]}
        self.gateway = self.start(gateway)

    def upstream(self, port, version):
        argv = [os.path.join(peers.BIN, "origin"), f"127.0.0.1:{port}={version}={WORK_MS}"]
        return self.group.start(f"origin-{port}", argv, LOAD_CORE, port, self.directory)

    def start(self, name):
        values = {"DIR": self.directory, "PORT": PORTS[name], "ADMIN": ADMIN.get(name, 0), "V2": V2,
                  "CONCURRENCY": read("concurrency-envoy.yaml") if self.scenario == "overload" else "",
                  **{f"V1{letter}": port for letter, port in zip("ABC", V1)}}
        for template in os.listdir(os.path.join(peers.HERE, "faults")):
            if template.startswith(name):
                peers.render(os.path.join("..", "faults", template), values, self.directory)
        process = self.group.start(name, peers.command(name, self.directory), PROXY_CORE, PORTS[name], self.directory)
        peers.wait_routed(process)
        return process

    def mode(self, port, query):
        self.ask(port, f"/mode?{query}")

    def count(self):
        """Requests that the upstreams got so far."""
        return sum(int(self.ask(port, "/count")) for port in self.upstreams)

    @staticmethod
    def ask(port, target):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", target)
        response = connection.getresponse()
        body = response.read().decode()
        if response.status != 200:
            raise RuntimeError(f"upstream {port} says {response.status} to {target}")
        return body

    def kill(self, port):
        self.upstreams[port].child.kill()
        self.upstreams[port].child.wait()

    def restart(self, port):
        self.upstreams[port] = self.upstream(port, "v1")


def read(template):
    with open(os.path.join(peers.HERE, "faults", template)) as file:
        return file.read()


def every(world, query):
    for port in [*V1, V2]:
        world.mode(port, query)


# Name -> (what is done to the world, requests/s, what it is about).
SCENARIOS = {
    "killed": (lambda w: w.kill(V1[0]), 300, "one of three instances is killed (SIGKILL)"),
    "refused": (lambda w: w.mode(V1[0], "fault=close"), 300, "one closes every connection instead of answering"),
    "hung": (lambda w: w.mode(V1[0], "fault=hang"), 300, "one takes requests and never answers"),
    "errors": (lambda w: w.mode(V1[0], "status=500"), 300, "one answers 500 at once"),
    "canary": (lambda w: w.mode(V2, "status=500"), 300, "the whole canary (10 % of users) answers 500"),
    "slow": (lambda w: w.mode(V1[0], "delay_ms=200"), 300, "one becomes 40 times slower"),
    "truncated": (lambda w: w.mode(V1[0], "fault=truncate"), 300, "one breaks off in the middle of every body"),
    "storm": (lambda w: every(w, "status=503"), 300, "all answer 503: how much do retries add to the load"),
    "recovered": (lambda w: (w.kill(V1[0]), w.restart(V1[0])), 300, "one is killed and comes back at once"),
    "overload": (lambda w: every(w, f"delay_ms={WORK_MS * 4}&slots=2"), 900, "requests come at 3 times what can be served"),
}


def run(gateway, name):
    damage, rate, _ = SCENARIOS[name]
    with workdir() as directory, Group() as group:
        world = World(group, directory, gateway, name)
        loop = Loop(world.gateway.port, rate, "/api/users/42", {"Host": HOST})

        async def act():
            requests = asyncio.create_task(loop.run(WARM_S + DAMAGE_S))
            await asyncio.sleep(WARM_S)
            before = await asyncio.to_thread(world.count)
            await asyncio.to_thread(damage, world)
            return await requests, before

        results, before = asyncio.run(act())
        load = world.count() - before if name == "storm" else None
        after = [row for row in results if row[0] >= WARM_S]
        late = [row for row in after if row[0] >= WARM_S + 2]
        good = sorted(taken for _, status, taken in after if status == 200)
        return {"requests": len(after), "failed": sum(status != 200 for _, status, _ in after),
                "failed_late": sum(status != 200 for _, status, _ in late) / max(1, len(late)),
                "p50_ms": quantile(good, 0.50), "p99_ms": quantile(good, 0.99), "goodput": len(good) / DAMAGE_S,
                "upstream_load": load and load / max(1, len(after))}


def quantile(ordered, q):
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))] * 1e3 if ordered else float("inf")


def worse(name, serin, envoy):
    """In what Serin is worse, beyond what two runs of one gateway differ by."""
    found = []
    if serin["failed"] > envoy["failed"] * 1.1 + 3 and name != "storm":
        found.append(f"{serin['failed']} failed, Envoy {envoy['failed']}")
    if serin["p99_ms"] > envoy["p99_ms"] * 1.2 + 5:
        found.append(f"p99 {serin['p99_ms']:.0f} ms, Envoy {envoy['p99_ms']:.0f} ms")
    if name == "storm" and serin["upstream_load"] > max(1.2, envoy["upstream_load"] * 1.1):
        found.append(f"upstream load {serin['upstream_load']:.2f}, Envoy {envoy['upstream_load']:.2f}")
    return found


def table(results):
    lines = ["| scenario | gateway | failed | of them after 2 s | p50 ms | p99 ms | goodput/s | requests upstream per request |",
             "|---|---|---:|---:|---:|---:|---:|---:|"]
    for name, by_gateway in results.items():
        for gateway, r in by_gateway.items():
            load = f"{r['upstream_load']:.2f}" if r["upstream_load"] else "-"
            lines.append(f"| {SCENARIOS[name][2]} | {gateway} | {r['failed']} of {r['requests']} | {r['failed_late']:.1%} | "
                         f"{r['p50_ms']:.0f} | {r['p99_ms']:.0f} | {r['goodput']:.0f} | {load} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SCENARIOS), help="scenarios, by comma [%(default)s]")
    parser.add_argument("--gateways", default="serin,envoy")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results, bad = {}, []
    for name in args.only.split(","):
        results[name] = {}
        for gateway in args.gateways.split(","):
            results[name][gateway] = run(gateway, name)
            print(f"{name:10} {gateway}: {results[name][gateway]}", flush=True)
        if len(results[name]) == 2:
            bad += [f"{name}: {what}" for what in worse(name, results[name]["serin"], results[name]["envoy"])]
    text = f"# Serin beside Envoy while upstreams fail\n\n{table(results)}"
    text += "\nSerin is worse: " + ("; ".join(bad) if bad else "nowhere") + ".\n"
    directory = os.path.join(peers.TARGET, "bench")
    os.makedirs(directory, exist_ok=True)
    for file, content in (("faults.md", text), ("faults.json", json.dumps(results, indent=1))):
        with open(os.path.join(directory, file), "w") as out:
            out.write(content)
    print(f"\n{text}\nwritten to {directory}/faults.md and faults.json")
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except (RuntimeError, subprocess.SubprocessError) as error:
        print(f"bench-faults: {error}", file=sys.stderr)
        sys.exit(2)
