"""grpcio's own health servicer behind a server, and a client that has it say otherwise.

`health_peer.py server` prints its port and serves; `health_peer.py client ADDRESS SERVICE STATUS` sets the status that
the server reports for a service (SERVING, NOT_SERVING, UNKNOWN).
"""

import json
import sys
from concurrent import futures

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

CONTROL = "serin.test.Control"


def serve():
    servicer = health.HealthServicer()
    served = {"": "SERVING", "users.Users": "SERVING"}

    def set_status(request, _context):
        service, status = json.loads(request)
        servicer.set(service, health_pb2.HealthCheckResponse.ServingStatus.Value(status))
        return b"{}"

    for service, status in served.items():
        servicer.set(service, health_pb2.HealthCheckResponse.ServingStatus.Value(status))
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    handlers = {"set": grpc.unary_unary_rpc_method_handler(set_status)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(CONTROL, handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


def set_status(address, service, status):
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        channel.unary_unary(f"/{CONTROL}/set")(json.dumps([service, status]).encode(), timeout=5)
    return {"set": status}


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve()
    else:
        print(json.dumps(set_status(*sys.argv[2:5])))
