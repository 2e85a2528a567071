"""The load generators, pinned to the core that the upstreams are on."""

import http.client
import json
import os
import subprocess

from procs import LOAD_CORE

HERE = os.path.dirname(os.path.abspath(__file__))
HOST = "api.example.com"


def wrk(port, seconds, connections=64, path="/api/users/42", plain=False):
    """As many requests as `connections` get answered in `seconds`: the counts and latencies that load.lua prints."""
    argv = ["taskset", "-c", str(LOAD_CORE), "wrk", "-t1", f"-c{connections}", f"-d{seconds}s",
            "-s", os.path.join(HERE, "load.lua"), f"http://127.0.0.1:{port}{path}"] + (["plain"] if plain else [])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds + 30, check=True)
    result = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    if result["errors"] or not result["requests"]:
        raise RuntimeError(f"port {port}: {result['errors']} errors in {result['requests']} requests")
    return result


def start_paced(port, seconds, rate, log, connections=16, path="/api/users/42"):
    """Starts `rate` requests/s whatever the answers take, so that a stall shows; each one is written to `log`."""
    return subprocess.Popen(
        ["taskset", "-c", str(LOAD_CORE), "h2load", "--h1", f"--clients={connections}", f"--duration={seconds}",
         f"--rps={rate / connections}", f"--log-file={log}", f"--header=:authority: {HOST}", "--header=X-User-Id: user-1",
         f"http://127.0.0.1:{port}{path}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def read_paced(log):
    """(start in seconds since the epoch, seconds taken) of each request; raises if one failed."""
    rows = [line.split() for line in open(log)]
    failed = sum(row[1] != "200" for row in rows)
    if failed or not rows:
        raise RuntimeError(f"{failed} of {len(rows)} paced requests failed")
    return [(int(start) / 1e6, int(taken) / 1e6) for start, _, taken in rows]


def get(connection, path, headers=None):
    """Status and body of one request on a kept connection."""
    connection.request("GET", path, headers=headers if headers is not None else {"Host": HOST})
    response = connection.getresponse()
    return response.status, response.read().decode()


def connect(port):
    return http.client.HTTPConnection("127.0.0.1", port, timeout=5)
