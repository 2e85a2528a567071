"""Runs `serin top` on a real pseudo-terminal: what it shows, its keys, another size, and the terminal afterwards.

Usage: top.py BINARY ADMIN_URL. Ends with 0 if all is as it should be.
"""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time

DEADLINE = 15


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, command, environment, rows=24, columns=80):
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.slave)
        self.output = b""
        self.process = subprocess.Popen(
            command,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys):
        """Presses keys; what is expected from now on comes after that."""
        self.output = b""
        os.write(self.master, keys.encode())

    def expect(self, *words):
        """Waits until all of these were written."""
        end = time.monotonic() + DEADLINE
        while not all(word.encode() in self.output for word in words):
            left = end - time.monotonic()
            assert left > 0, f"waited in vain for {words} in {self.output!r}"
            if select.select([self.master], [], [], min(left, 0.1))[0]:
                self.output += os.read(self.master, 65536)

    def is_raw(self):
        return not termios.tcgetattr(self.slave)[3] & (termios.ICANON | termios.ECHO)

    def ends(self):
        """Waits for the end and checks that the terminal is as it was."""
        self.expect("\x1b[?1049l", "\x1b[?25h")
        assert self.process.wait(DEADLINE) == 0, self.process.returncode
        assert termios.tcgetattr(self.slave) == self.before, "the terminal is not as it was"


def main(binary, admin):
    environment = {**os.environ, "SERIN_ADMIN": admin, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)

    plain = Terminal([binary, "top"], {**environment, "NO_COLOR": "1"})
    plain.expect("\x1b[?1049h", "REQ/S", "users", "v1", "v2", "INSTANCE", "healthy", "quit")
    assert plain.is_raw()
    assert b"38;5;" not in plain.output, f"colours: {plain.output!r}"
    plain.press("jj")
    plain.press("?")
    plain.expect("Ctrl-C", "this help")
    plain.press("?")
    plain.press("p")
    plain.expect("PAUSED")
    plain.press("s")
    plain.resize(40, 120)
    plain.expect("requests", "PAUSED", "users", "INSTANCE")
    plain.resize(6, 30)
    plain.press("p")
    plain.resize(24, 80)
    plain.expect("users", "requests")
    plain.press("q")
    plain.ends()

    coloured = Terminal([binary, "top"], environment)
    coloured.expect("users", "healthy", "38;5;")
    coloured.press("\x03")
    coloured.ends()


if __name__ == "__main__":
    main(*sys.argv[1:])
