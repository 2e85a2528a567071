"""The proxies that are compared: how each is started. Their rules are in peers/."""

import os
import re
import shutil
import subprocess
import time

from load import connect, get
from procs import LOAD_CORE, PROXY_CORE

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
BIN = os.path.join(TARGET, "dist")
VENV = os.path.join(ROOT, ".tools", "venv-bench", "bin")
SERIN = os.environ.get("SERIN_BIN", os.path.join(BIN, "serin"))

ORIGINS = {"V1A": 19001, "V1B": 19002, "V2": 19003}
# `guarded` is Serin with everything on that keeps a service up.
PORTS = {"bare": 18001, "serin": 18002, "nginx": 18003, "haproxy": 18004, "envoy": 18005, "traefik": 18006, "guarded": 18007}
ADMIN = {"serin": 18102, "traefik": 18106, "guarded": 18107}
NAMES = list(PORTS)
# Serin that sends spans of such a share of the requests to a receiver, and another one that sends none; in the part `traces`
# alone.
TRACED = {"traced-1": "1%", "traced-100": "100%"}
BESIDE = ["again", *TRACED]
PORTS |= {"traced-1": 18008, "traced-100": 18009, "again": 18010}
ADMIN |= {"traced-1": 18108, "traced-100": 18109, "again": 18110}
SINK = 18201
SERINS = {"serin", "guarded", *BESIDE}

# How each one writes a JSON line per request to @LOG_FILE@, and how it does not.
LOGGING = {
    "serin": ("LOG", "telemetry: { access_log: { path: @LOG_FILE@, format: json } }", ""),
    "guarded": ("LOG", "telemetry: { access_log: { path: @LOG_FILE@, format: json } }", ""),
    "again": ("LOG", "", ""),
    "nginx": ("ACCESS_LOG", "@LOG_FILE@ bench buffer=64k flush=1s", "off"),
    "haproxy": ("LOG", "log global", ""),
    "envoy": ("ACCESS_LOG", open(os.path.join(HERE, "peers", "envoy-log.yaml")).read().strip(), "[]"),
    "traefik": ("LOG", "accessLog: { filePath: @LOG_FILE@, format: json, bufferingSize: 1000 }", ""),
}


def start_origins(group, workdir):
    """The three upstreams, in one process."""
    versions = {"V1A": "v1", "V1B": "v1", "V2": "v2"}
    argv = [os.path.join(BIN, "origin")] + [f"127.0.0.1:{port}={versions[key]}" for key, port in ORIGINS.items()]
    return group.start("origin", argv, LOAD_CORE, ORIGINS["V2"], workdir)


def start_sink(group, workdir):
    """A receiver of spans that looks at none of them."""
    return group.start("sink", [os.path.join(BIN, "sink"), f"127.0.0.1:{SINK}"], LOAD_CORE, SINK, workdir)


def start(group, name, workdir, logs=False, **override):
    """Starts a proxy with the rules in peers/, changed by `override`; its access log, if any, is in `log_file`."""
    guards = read("guards.yaml") if name == "guarded" else ""
    values = {"PORT": PORTS[name], "ADMIN": ADMIN.get(name, 0), "GUARDS": guards, **ORIGINS, **override}
    log_file = os.path.join(workdir, f"{name}.log")
    if name in LOGGING:
        key, on, off = LOGGING[name]
        values[key] = on.replace("@LOG_FILE@", log_file) if logs else off
    if name in TRACED:
        otlp = f"{{ endpoint: 'http://127.0.0.1:{SINK}', protocol: http }}"
        values["LOG"] = f"telemetry: {{ traces: {{ otlp: {otlp}, sample: {TRACED[name]} }} }}"
    workdir = values["DIR"] = os.path.join(workdir, name)
    os.mkdir(workdir)
    family = "serin" if name in SERINS else name
    for template in os.listdir(os.path.join(HERE, "peers")):
        if template.split(".")[0].split("-")[0] == family:
            render(template, values, workdir)
    stdout = log_file if name == "haproxy" else None
    process = group.start(name, command(name, workdir), PROXY_CORE, PORTS[name], workdir, stdout, {"GOMAXPROCS": "1"})
    process.log_file = log_file if logs and name in LOGGING else None
    wait_routed(process)
    return process


def wait_routed(process, path="/api/users/42", seconds=10):
    """Returns when a request gets through: a port may be open before the routes are there."""
    connection, deadline = connect(process.port), time.monotonic() + seconds
    while (status := get(connection, path)[0]) != 200:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{process.name}: still answers {status}")
        time.sleep(0.02)
    connection.close()


def read(template):
    with open(os.path.join(HERE, "peers", template)) as file:
        return file.read()


def render(template, values, workdir):
    text = read(template)
    for key, value in values.items():
        text = text.replace(f"@{key}@", str(value))
    with open(os.path.join(workdir, os.path.basename(template)), "w") as file:
        file.write(text)


def command(name, workdir):
    conf = lambda file: os.path.join(workdir, file)
    match name:
        case "bare":
            return [os.path.join(BIN, "bare"), f"127.0.0.1:{PORTS['bare']}",
                    *(f"127.0.0.1:{port}" for port in ORIGINS.values())]
        case _ if name in SERINS:
            return [SERIN, "run", "--config", conf("serin.yaml")]
        case "nginx":
            return [find("nginx"), "-p", workdir, "-c", conf("nginx.conf"), "-e", "stderr"]
        case "haproxy":
            return [find("haproxy"), "-db", "-f", conf("haproxy.cfg")]
        case "envoy":
            return [os.path.join(VENV, "envoy"), "--concurrency", "1", "--log-level", "error",
                    "--disable-hot-restart", "-c", conf("envoy.yaml")]
        case "traefik":
            return [os.path.join(VENV, "traefik"), f"--configFile={conf('traefik.yaml')}"]


def find(binary):
    path = shutil.which(binary, path=os.environ["PATH"] + ":/usr/sbin")
    if not path:
        raise RuntimeError(f"{binary} is not installed: run e2e/bench/setup.sh")
    return path


def version(name):
    """One line that says which build was measured."""
    argv = {"nginx": [find("nginx"), "-v"], "haproxy": [find("haproxy"), "-v"], **{name: [SERIN, "--version"] for name in SERINS},
            "envoy": [os.path.join(VENV, "envoy"), "--version"], "traefik": [os.path.join(VENV, "traefik"), "version"]}
    if name not in argv:
        return "pingora 0.9.1"
    done = subprocess.run(argv[name], capture_output=True, text=True)
    text = next((line for line in (done.stdout + done.stderr).splitlines() if line.strip()), "")
    found = re.search(r"\d+\.\d+\.\d+[\w.+-]*", text)
    return found[0] if found else text.strip()
