"""An OTLP receiver on the messages of opentelemetry-proto: gRPC (grpcio) and HTTP. It remembers what it got and tells it as
JSON, and misbehaves on demand. `server [CERT KEY]` prints the port of its HTTP side; gRPC is TLS if there is a certificate.
On the HTTP side are also:

    GET /spans, /metrics, /grpc (the port of gRPC), /calls
    PUT /mode   {"hang": true} | {"delay": 0.5} | {"refuse": "UNAVAILABLE"} | {"reject": 3} | {}
"""

import gzip
import json
import sys
import threading
import time
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

spans, metrics, calls, mode = [], [], [], {}
lock = threading.Lock()
held = threading.Condition()


def value(any_value):
    return getattr(any_value, any_value.WhichOneof("value") or "string_value")


def attributes(pairs):
    found = {}
    for pair in pairs:
        assert pair.key and pair.key not in found, f"{pair.key} is there twice"
        found[pair.key] = value(pair.value)
    return found


def take_spans(request, how):
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                spans.append({
                    "how": how,
                    "resource": attributes(resource.resource.attributes),
                    "scope": scope.scope.name,
                    "schema": scope.schema_url,
                    "trace": span.trace_id.hex(),
                    "span": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "state": span.trace_state,
                    "flags": span.flags,
                    "name": span.name,
                    "kind": span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                    "start": span.start_time_unix_nano,
                    "end": span.end_time_unix_nano,
                    "status": span.status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_").lower(),
                    "attributes": attributes(span.attributes),
                })


def take_metrics(request, how):
    metrics.clear()
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                data = getattr(metric, metric.WhichOneof("data"))
                for point in data.data_points:
                    told = {
                        "how": how,
                        "resource": attributes(resource.resource.attributes),
                        "name": metric.name,
                        "kind": metric.WhichOneof("data"),
                        "unit": metric.unit,
                        "attributes": attributes(point.attributes),
                    }
                    if metric.WhichOneof("data") == "histogram":
                        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
                        assert sum(point.bucket_counts) == point.count
                        told["value"] = point.count
                        told["exemplars"] = [each.trace_id.hex() for each in point.exemplars]
                    else:
                        told["value"] = getattr(point, point.WhichOneof("value"))
                    metrics.append(told)


def behave():
    """Does what it was told to do before it answers."""
    with held:
        hangs = mode.get("hang", False)
        # Until it is told to do something else, by when whoever asked has left.
        held.wait_for(lambda: not mode.get("hang"))
    time.sleep(mode.get("delay", 0))
    return not hangs


class Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(self, request, context):
        with lock:
            calls.append(dict(context.invocation_metadata()))
        if not behave():
            context.abort(grpc.StatusCode.CANCELLED, "too late")
        if "refuse" in mode:
            context.abort(grpc.StatusCode[mode["refuse"]], "as told")
        with lock:
            take_spans(request, "grpc")
        answer = trace_service_pb2.ExportTraceServiceResponse()
        answer.partial_success.rejected_spans = mode.get("reject", 0)
        return answer


class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def Export(self, request, context):
        behave()
        with lock:
            take_metrics(request, "grpc")
        return metrics_service_pb2.ExportMetricsServiceResponse()


class Http(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        return gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body

    def answer(self, status, body, kind):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        with lock:
            told = {"/spans": spans, "/metrics": metrics, "/grpc": grpc_port, "/calls": calls}[self.path]
            body = json.dumps(told).encode()
        self.answer(200, body, "application/json")

    def do_PUT(self):
        with held:
            mode.clear()
            mode.update(json.loads(self.body()))
            held.notify_all()
        self.answer(200, b"{}", "application/json")

    def do_POST(self):
        body = self.body()
        assert self.headers["content-type"] == "application/x-protobuf", self.headers
        with lock:
            calls.append({name.lower(): text for name, text in self.headers.items()})
        behave()
        if "refuse" in mode:
            return self.answer(503, b"", "application/x-protobuf")
        with lock:
            if self.path == "/v1/traces":
                take_spans(trace_service_pb2.ExportTraceServiceRequest.FromString(body), "http")
                answer = trace_service_pb2.ExportTraceServiceResponse()
                answer.partial_success.rejected_spans = mode.get("reject", 0)
            else:
                take_metrics(metrics_service_pb2.ExportMetricsServiceRequest.FromString(body), "http")
                answer = metrics_service_pb2.ExportMetricsServiceResponse()
        self.answer(200, answer.SerializeToString(), "application/x-protobuf")


if __name__ == "__main__":
    assert sys.argv[1] == "server", sys.argv
    receiver = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), receiver)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), receiver)
    if sys.argv[2:]:
        cert, key = (open(path, "rb").read() for path in sys.argv[2:])
        grpc_port = receiver.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, cert)]))
    else:
        grpc_port = receiver.add_insecure_port("127.0.0.1:0")
    receiver.start()
    http = ThreadingHTTPServer(("127.0.0.1", 0), Http)
    http.daemon_threads = True
    print(http.server_port, flush=True)
    http.serve_forever()
