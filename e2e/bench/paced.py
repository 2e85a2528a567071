"""An open loop: requests start when they are due, whatever became of those before, and latency counts from then on."""

import asyncio
import time

TIMEOUT_S = 10


class Loop:
    """`rate` GET requests a second to a port of this machine, over kept connections that are replaced when they break."""

    def __init__(self, port, rate, path, headers):
        self.port, self.rate, self.idle, self.results = port, rate, [], []
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        self.head = ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def run(self, seconds):
        """The results: (when it was due in s from the start, status, s taken); status 0 is no or half an answer."""
        start, tasks = time.monotonic(), []
        for number in range(int(seconds * self.rate)):
            due = start + number / self.rate
            await asyncio.sleep(max(0, due - time.monotonic()))
            tasks.append(asyncio.create_task(self.request(start, due)))
        await asyncio.gather(*tasks)
        for _, writer in self.idle:
            writer.close()
        return sorted(self.results)

    async def request(self, start, due):
        try:
            status = await asyncio.wait_for(self.exchange(), TIMEOUT_S)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError):
            status = 0
        self.results.append((due - start, status, time.monotonic() - due))

    async def exchange(self):
        reader, writer = self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", self.port)
        done = False
        try:
            writer.write(self.head)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
            fields = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
            await reader.readexactly(int(fields.get("content-length", 0)))
            done = fields.get("connection") != "close"
            return int(head[0].split(" ")[1])
        finally:
            if done:
                self.idle.append((reader, writer))
            else:
                writer.close()
