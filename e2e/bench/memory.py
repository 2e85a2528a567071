#!/usr/bin/env python3
"""What a connection costs a gateway in memory: idle ones, in clear text and over TLS, and stalled HTTP/2 streams.

A gateway binary is started for each measurement; what is reported is the growth of its resident memory, divided. The
bounds are those of the book's page on the edge. Exits with 1 if one is broken.
"""

import argparse
import asyncio
import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import time

PAGE = os.sysconf("SC_PAGE_SIZE")
BOUNDS = {"idle": 10.0, "idle_tls": 32.0, "stalled_stream": 600.0}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def head_block(path):
    fields = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "a")]
    return b"".join(bytes([0, len(n)]) + n.encode() + bytes([len(v)]) + v.encode() for n, v in fields)


class Gateway:
    """A gateway before an origin that sends endless bodies; both end with the block."""

    def __init__(self, binary, origin):
        self.dir = tempfile.TemporaryDirectory(prefix="serin-memory-")
        self.http, self.tls, self.admin = free_port(), free_port(), free_port()
        path = self.dir.name
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
             "1", "-subj", "/CN=a", "-addext", "subjectAltName=DNS:a", "-keyout", f"{path}/a.key", "-out", f"{path}/a.crt"],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        documents = {
            "serin": {
                "listeners": [
                    {"name": "http", "address": f"127.0.0.1:{self.http}", "protocols": ["http1", "h2c"]},
                    {"name": "tls", "address": f"127.0.0.1:{self.tls}",
                     "tls": {"certificates": [{"cert": "a.crt", "key": "a.key"}]}},
                ],
                "admin": {"address": f"127.0.0.1:{self.admin}"},
                "routing": {"file": "routing.yaml"}, "traffic": {"file": "traffic.yaml"},
                "limits": {"idle": "1h"},
            },
            "routing": {
                "services": {"all": {"instances": [{"address": f"127.0.0.1:{origin}"}],
                                     "timeouts": {"request": "none"}}},
                "routes": [{"name": "all", "match": {}, "service": "all"}],
            },
            "traffic": {"revision": 1, "services": {}},
        }
        for name, document in documents.items():
            with open(f"{path}/{name}.yaml", "w") as file:
                json.dump(document, file)
        self.log = open(f"{path}/log", "wb")
        self.child = subprocess.Popen([binary, "run", "--config", f"{path}/serin.yaml"], cwd=path, stdout=self.log,
                                      stderr=self.log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while True:
            try:
                for port in (self.http, self.tls):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if self.child.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(open(f"{path}/log").read()) from None
                time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        self.log.close()
        self.dir.cleanup()

    def rss(self):
        with open(f"/proc/{self.child.pid}/statm") as statm:
            return int(statm.read().split()[1]) * PAGE

    def settled(self):
        """Resident memory once it changes no more."""
        last, still = self.rss(), 0
        for _ in range(100):
            time.sleep(0.1)
            now = self.rss()
            still = still + 1 if abs(now - last) < 64 << 10 else 0
            if still == 5:
                break
            last = now
        return self.rss()


async def origin(ready):
    """Answers `/small` with two bytes, and everything else with a body that does not end."""
    async def serve(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET /small"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                    await writer.drain()
                    continue
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n")
                while True:
                    writer.write(b"x" * 65536)
                    await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            writer.close()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    ready.set_result(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def idle(gateway, count, tls):
    """KiB per idle connection that had a request before."""
    context = None
    if tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["http/1.1"])
    port, held, gate = (gateway.tls if tls else gateway.http), [], asyncio.Semaphore(64)

    async def connect():
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(b"GET /small HTTP/1.1\r\nhost: a\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
            held.append(writer)

    await asyncio.gather(*(connect() for _ in range(200)))
    before, first = await asyncio.to_thread(gateway.settled), len(held)
    await asyncio.gather(*(connect() for _ in range(count)))
    after = await asyncio.to_thread(gateway.settled)
    assert len(held) == first + count
    for writer in held:
        writer.transport.abort()
    return (after - before) / count / 1024


async def stalled(gateway, connections, streams):
    """KiB per stream whose client never makes room for more than its first window."""
    held, first = [], 5

    async def connect():
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.http)
        # A window of one byte, so that next to nothing leaves the gateway.
        writer.write(PREFACE + frame(4, 0, 0, (4).to_bytes(2, "big") + (1).to_bytes(4, "big")))
        for nth in range(streams):
            writer.write(frame(1, 5, 2 * nth + 1, head_block("/endless")))
        await writer.drain()
        held.append((reader, writer))

    await asyncio.gather(*(connect() for _ in range(first)))
    before = await asyncio.to_thread(gateway.settled)
    await asyncio.gather(*(connect() for _ in range(connections)))
    after = await asyncio.to_thread(gateway.settled)
    for _, writer in held:
        writer.transport.abort()
    return (after - before) / (connections * streams) / 1024


async def measure(args):
    ready = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(origin(ready))
    port, found = await ready, {}
    for name, tls in (("idle", False), ("idle_tls", True)):
        with Gateway(args.binary, port) as gateway:
            found[name] = await idle(gateway, args.connections, tls)
    with Gateway(args.binary, port) as gateway:
        found["stalled_stream"] = await stalled(gateway, args.h2, 100)
    task.cancel()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", help="the gateway to measure")
    parser.add_argument("--connections", type=int, default=10_000, help="idle connections [10000]")
    parser.add_argument("--h2", type=int, default=10, help="HTTP/2 connections with 100 stalled streams each [10]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    args.binary = os.path.abspath(args.binary)
    wanted = args.connections + 1_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    found = asyncio.run(measure(args))
    if args.json:
        print(json.dumps({name: round(kib, 2) for name, kib in found.items()}))
    else:
        for name, kib in found.items():
            print(f"{name:15} {kib:7.1f} KiB (bound {BOUNDS[name]:.0f})")
    sys.exit(any(kib > BOUNDS[name] for name, kib in found.items()))


if __name__ == "__main__":
    main()
