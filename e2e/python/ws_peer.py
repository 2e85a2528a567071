"""A WebSocket client: `ws_peer.py client URL` talks to an echo server behind URL and prints JSON."""

import json
import sys

from websockets.sync.client import connect


def talk(url):
    with connect(url, additional_headers={"x-user-id": "7"}, max_size=None, open_timeout=5, proxy=None) as socket:
        socket.send("text")
        text = socket.recv(timeout=5)
        big = bytes(range(256)) * 4096
        socket.send(big)
        same = socket.recv(timeout=5) == big
        pong = socket.ping().wait(timeout=5)
        socket.close(code=1000)
        return {"text": text, "big_is_same": same, "pong": pong, "close_code": socket.close_code}


if __name__ == "__main__":
    print(json.dumps(talk(sys.argv[2])))
