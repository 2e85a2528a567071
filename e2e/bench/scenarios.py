"""The three questions that the main comparison does not ask: a slow upstream, idle connections, a large reload."""

import json
import os
import socket
import time
from statistics import mean, median

import peers
from load import HOST, connect, get, read_paced, start_paced, wrk
from procs import LOAD_CORE, Group, workdir

SLOW_PORTS = {19011: 20, 19012: 20, 19013: 200}  # port -> ms
SLOW_CONCURRENCY = 32
IDLE_CONNECTIONS = 5000
ROUTES = 10_000
RATE = 2000  # requests/s during reloads
RELOADS_A_TURN = 5
QUIET_S = 1.5  # about as long as they take
ASK_S = 0.005


def slow_upstream(rounds, seconds, say):
    """Pick -> mean latency in ms, with three upstreams of which one is ten times slower, 32 requests at a time."""
    picks = ["round_robin", "p2c", "peak_ewma"]
    with workdir() as directory, Group() as group:
        argv = [os.path.join(peers.BIN, "origin")] + [f"127.0.0.1:{port}=v1={ms}" for port, ms in SLOW_PORTS.items()]
        group.start("origin", argv, LOAD_CORE, max(SLOW_PORTS), directory)
        serin = start_serin(group, directory, slow_routing(picks), path=f"/{picks[0]}")
        samples = {pick: [] for pick in picks}
        for turn in range(rounds):
            for pick in picks:
                wrk(serin.port, 1, SLOW_CONCURRENCY, f"/{pick}", plain=True)
                done = wrk(serin.port, seconds, SLOW_CONCURRENCY, f"/{pick}", plain=True)
                # Little's law for a closed loop. wrk's own mean is no measurement: it adds samples of its own for
                # requests that it would have liked to send meanwhile.
                samples[pick].append(SLOW_CONCURRENCY * done["duration_us"] / done["requests"] / 1e3)
                say(f"slow upstream {turn + 1}/{rounds} {pick}: mean {samples[pick][-1]:.1f} ms")
    return {pick: median(values) for pick, values in samples.items()}


def slow_routing(picks):
    instances = [{"address": f"127.0.0.1:{port}", "labels": {"version": "v1"}} for port in SLOW_PORTS]
    return {
        "services": {pick: {"instances": instances, "protocol": "http1", "subsets": {"v1": {"version": "v1"}},
                            "stable": "v1", "balancer": [{pick: {}}]} for pick in picks},
        "routes": [{"name": pick, "match": {"path": {"prefix": f"/{pick}"}}, "service": pick} for pick in picks],
    }


def start_serin(group, directory, routing, path="/api/users/42"):
    """Serin with another routing document and no version weights."""
    write(os.path.join(directory, "routing.yaml"), document(routing))
    write(os.path.join(directory, "traffic.yaml"), "revision: 1\n")
    values = {"DIR": directory, "PORT": peers.PORTS["serin"], "ADMIN": peers.ADMIN["serin"], "LOG": "", "GUARDS": ""}
    peers.render("serin.yaml", values, directory)
    bootstrap = os.path.join(directory, "serin.yaml")
    with open(bootstrap) as file:
        text = file.read()
    write(bootstrap, text.replace("serin-routing.yaml", "routing.yaml").replace("serin-traffic.yaml", "traffic.yaml"))
    process = group.start("serin", peers.command("serin", directory), peers.PROXY_CORE, values["PORT"], directory)
    peers.wait_routed(process, path)
    return process


def document(routing):
    """A routing document as operators write it: a route to a line."""
    routes = "".join(f"  - {json.dumps(route)}\n" for route in routing["routes"])
    return f"services: {json.dumps(routing['services'])}\nroutes:\n{routes}"


def write(path, text):
    """Writes a file in one step, as an operator's tool would."""
    with open(path + ".tmp", "w") as file:
        file.write(text)
    os.rename(path + ".tmp", path)


def idle(names, say):
    """Name -> resident bytes per idle keep-alive connection that has had one request."""
    result = {}
    for name in names:
        with workdir() as directory, Group() as group:
            peers.start_origins(group, directory)
            process = peers.start(group, name, directory)
            before = settled_rss(process)
            sockets = [one_request(process.port) for _ in range(IDLE_CONNECTIONS)]
            result[name] = (settled_rss(process) - before) / IDLE_CONNECTIONS
            for sock in sockets:
                sock.close()
        say(f"idle {name}: {result[name] / 1024:.1f} KiB per connection")
    return result


def one_request(port):
    sock = socket.create_connection(("127.0.0.1", port), 5)
    sock.sendall(f"GET /api/users/42 HTTP/1.1\r\nHost: {HOST}\r\nX-User-Id: user-{sock.getsockname()[1]}\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"\n") or b"\r\n\r\n" not in answer:
        chunk = sock.recv(4096)
        if not chunk:
            raise RuntimeError(f"port {port} closed a connection")
        answer += chunk
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"port {port}: {answer[:60]}")
    return sock


def settled_rss(process, seconds=8):
    """Resident bytes when they have not changed for a second, or at the deadline."""
    deadline, last, since = time.monotonic() + seconds, process.rss(), time.monotonic()
    while time.monotonic() < deadline and time.monotonic() - since < 1:
        time.sleep(0.1)
        if (now := process.rss()) != last:
            last, since = now, time.monotonic()
    return last


def reload(count, say):
    """Times in s of `count` reloads of 10,000 routes in a row without and with load, and p99 in us of the load's requests
    without and during reloads, in turns."""
    with workdir() as directory, Group() as group:
        peers.start_origins(group, directory)
        serin = start_serin(group, directory, many_routes(0))
        documents = [os.path.join(directory, f"routing-{turn}.yaml") for turn in range(1, 2 * count + 1)]
        for turn, path in enumerate(documents, 1):
            write(path, document(many_routes(turn)))

        def reloads(paths):
            return [reload_once(path, os.path.join(directory, "routing.yaml"), say) for path in paths]

        alone, spans, quiet, busy = reloads(documents[:count]), [], [], []
        wrk(serin.port, 1)
        for turn in range(count, 2 * count, RELOADS_A_TURN):
            paths = documents[turn:turn + RELOADS_A_TURN]
            log = os.path.join(directory, "paced")
            quiet += paced(serin.port, log, lambda: ask_for(QUIET_S))
            busy += paced(serin.port, log, lambda: spans.extend(reloads(paths)))
            time.sleep(1)  # What is still to be freed is not to disturb the requests without reloads.
    during = [taken for start, taken in busy if any(a < start + taken and start < b for a, b in spans)]
    return {"alone": [b - a for a, b in alone], "loaded": [b - a for a, b in spans],
            "p99_quiet_us": p99(taken for _, taken in quiet), "p99_reload_us": p99(during),
            "mean_quiet_us": mean(taken for _, taken in quiet) * 1e6, "mean_reload_us": mean(during) * 1e6,
            "requests": len(during)}


def ask_for(seconds):
    """Asks for the revision as often as during a reload, and reloads nothing."""
    admin, end = connect(peers.ADMIN["serin"]), time.time() + seconds
    while time.time() < end:
        revision(admin)
        time.sleep(ASK_S)


def paced(port, log, work):
    """Requests at a steady rate for as long as `work` takes."""
    load = start_paced(port, 60, RATE, log)
    try:
        time.sleep(0.5)
        began = time.time()
        # This process shares a core with the load and the upstreams, and must not be what the requests wait for.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        work()
        ended = time.time()
        time.sleep(0.2)
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        load.terminate()
        load.wait(5)
    return [row for row in read_paced(log) if began <= row[0] <= ended]


def reload_once(written, path, say):
    """When a document that is written took its place, and when the gateway said that it is in force."""
    admin = connect(peers.ADMIN["serin"])
    old = revision(admin)
    start = time.time()
    os.rename(written, path)
    while revision(admin) == old:
        if time.time() - start > 10:
            raise RuntimeError("no new routing revision within 10 s of the write")
        time.sleep(ASK_S)
    end = time.time()
    say(f"reload of {ROUTES} routes: {(end - start) * 1e3:.0f} ms")
    return start, end


def revision(admin):
    status, body = get(admin, "/readyz?verbose", {})
    if status != 200:
        raise RuntimeError(f"/readyz says {status}: {body[:500]}")
    return json.loads(body)["documents"]["routing"]["revision"]


def many_routes(turn):
    instances = [{"address": f"127.0.0.1:{port}", "labels": {"version": "v1"}} for port in peers.ORIGINS.values()]
    routes = [{"name": f"r{i}", "match": {"hosts": [f"h{i % 100}.example.com"], "path": {"prefix": f"/api/v{turn}/r{i}"}},
               "service": "users"} for i in range(ROUTES - 1)]
    routes.append({"name": "users", "match": {"hosts": [HOST], "path": {"prefix": "/api/users"}}, "service": "users"})
    services = {"users": {"instances": instances, "subsets": {"v1": {"version": "v1"}}, "stable": "v1",
                          "balancer": [{"p2c": {}}]}}
    return {"services": services, "routes": routes}


def p99(values):
    ordered = sorted(values)
    return ordered[int(len(ordered) * 0.99)] * 1e6
