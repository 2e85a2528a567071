"""Processes that the bench starts, pins, measures and ends. Nothing else is ever signalled."""

import os
import socket
import subprocess
import tempfile
import time

PAGE = os.sysconf("SC_PAGE_SIZE")
PROXY_CORE, LOAD_CORE = 0, 1


class Process:
    """A child pinned to one core, that ends when the bench does."""

    def __init__(self, name, argv, core, port, workdir, stdout=None, env=None):
        self.name, self.port = name, port
        if connects(port):
            raise RuntimeError(f"{name}: port {port} is in use")
        self.log = os.path.join(workdir, f"{name}.err")
        out = open(stdout, "ab") if stdout else subprocess.DEVNULL
        with open(self.log, "wb") as err:
            self.child = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "taskset", "-c", str(core), *argv],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=workdir, start_new_session=True,
                env={**os.environ, **(env or {})})
        if stdout:
            out.close()

    def wait_ready(self, seconds=20):
        """Returns when the port takes connections."""
        deadline = time.monotonic() + seconds
        while not connects(self.port):
            if self.child.poll() is not None or time.monotonic() > deadline:
                with open(self.log, errors="replace") as log:
                    tail = log.read()[-2000:]
                raise RuntimeError(f"{self.name} did not start (exit {self.child.poll()}):\n{tail}")
            time.sleep(0.02)
        return self

    def pids(self):
        """The process and its children (nginx works in a child)."""
        pids = [self.child.pid]
        with open(f"/proc/{self.child.pid}/task/{self.child.pid}/children") as children:
            return pids + [int(pid) for pid in children.read().split()]

    def cpu(self):
        """CPU seconds used so far, user and system, to the nanosecond (clock_getcpuclockid(3))."""
        return sum(time.clock_gettime(~pid << 3 | 2) for pid in self.pids())

    def rss(self):
        """Resident bytes now."""
        total = 0
        for pid in self.pids():
            with open(f"/proc/{pid}/statm") as statm:
                total += int(statm.read().split()[1]) * PAGE
        return total

    def stop(self):
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(3)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()


class Group:
    """Processes that are ended together, also on an error or Ctrl-C."""

    def __init__(self):
        self.members = []

    def start(self, *args, **kwargs):
        process = Process(*args, **kwargs)
        self.members.append(process)
        return process.wait_ready()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.members):
            process.stop()


def workdir():
    """A directory on tmpfs, if there is one: access logs are not to measure a disk."""
    return tempfile.TemporaryDirectory(prefix="serin-bench-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


def runnable():
    """How many tasks want a core now, besides this one."""
    with open("/proc/loadavg") as loadavg:
        return int(loadavg.read().split()[3].split("/")[0]) - 1


def connects(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False
