"""A gRPC server and client without protoc: bytes go in, bytes come out.

`grpc_peer.py server` prints its port and serves; `grpc_peer.py client ADDRESS KIND` makes one call
(unary, stream, bidi, error or metadata) and prints JSON.
"""

import json
import queue
import sys
from concurrent import futures

import grpc

SERVICE = "serin.test.Peer"


def unary(request, context):
    context.set_trailing_metadata((("x-trailing", "after unary"),))
    return b"hello " + request


def stream(request, _context):
    for number in range(int(request)):
        yield b"item %d" % number


def bidi(requests, context):
    for request in requests:
        yield b"echo " + request
    context.set_trailing_metadata((("x-trailing", "after bidi"),))


def error(_request, context):
    context.set_trailing_metadata((("x-trailing", "after error"),))
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not today: 100 %")


def metadata(_request, context):
    pairs = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
    return json.dumps(pairs).encode()


def serve():
    handlers = {
        "unary": grpc.unary_unary_rpc_method_handler(unary),
        "stream": grpc.unary_stream_rpc_method_handler(stream),
        "bidi": grpc.stream_stream_rpc_method_handler(bidi),
        "error": grpc.unary_unary_rpc_method_handler(error),
        "metadata": grpc.unary_unary_rpc_method_handler(metadata),
    }
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


def trailing(call):
    """What the test sent: where an error has no body, everything in the response's head counts as trailing too."""
    return {key: value for key, value in call.trailing_metadata() or () if key == "x-trailing"}


def call(address, kind):
    options = [("grpc.default_authority", "grpc.example.com"), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options=options) as channel:
        path = f"/{SERVICE}/{kind}"
        if kind == "stream":
            answer = channel.unary_stream(path)(b"5", timeout=5)
            items = [item.decode() for item in answer]
            return {"items": items, "code": answer.code().name, "trailing": trailing(answer)}
        if kind == "bidi":
            return converse(channel.stream_stream(path))
        headers = (("x-user-id", "7"), ("x-sent", "by grpcio"))
        try:
            reply, answer = channel.unary_unary(path).with_call(b"world", timeout=5, metadata=headers)
            return {"reply": reply.decode(), "code": answer.code().name, "trailing": trailing(answer)}
        except grpc.RpcError as refused:
            return {"code": refused.code().name, "details": refused.details(), "trailing": trailing(refused)}


def converse(method):
    """Sends the next message only when the answer to the last one is there: nothing may be buffered on the way."""
    outbox = queue.Queue()
    answer = method(iter(outbox.get, None), timeout=5)
    items = []
    for number in range(3):
        outbox.put(b"%d" % number)
        items.append(next(answer).decode())
    outbox.put(None)
    rest = [item.decode() for item in answer]
    return {"items": items, "rest": rest, "code": answer.code().name, "trailing": trailing(answer)}


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve()
    else:
        print(json.dumps(call(sys.argv[2], sys.argv[3])))
