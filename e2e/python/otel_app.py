"""A client and an upstream with the real OpenTelemetry SDK, which send their spans to an OTLP receiver.

    otel_app.py server RECEIVER       an HTTP server with a span per request and one inside it
    otel_app.py client RECEIVER URL   a GET of the URL within a span; prints {"trace", "status", "upstream"}
"""

import json
import sys
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry import baggage, context, propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

role, receiver = sys.argv[1:3]
provider = TracerProvider(resource=Resource.create({"service.name": role}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{receiver}/v1/traces")))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("otel_app")


class Upstream(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        parent = propagate.extract({name.lower(): value for name, value in self.headers.items()})
        with tracer.start_as_current_span("upstream", context=parent, kind=trace.SpanKind.SERVER) as span:
            with tracer.start_as_current_span("work"):
                told = span.get_span_context()
                body = json.dumps({
                    "trace": f"{told.trace_id:032x}",
                    "sampled": bool(told.trace_flags & 1),
                    "state": told.trace_state.to_header(),
                    "baggage": dict(baggage.get_all(parent)),
                }).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if role == "server":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    server.serve_forever()
else:
    with tracer.start_as_current_span("client", kind=trace.SpanKind.CLIENT) as span:
        headers = {}
        propagate.inject(headers, baggage.set_baggage("tenant", "blue", context.get_current()))
        with urllib.request.urlopen(urllib.request.Request(sys.argv[3], headers=headers), timeout=10) as response:
            upstream = json.loads(response.read())
            status = response.status
    provider.shutdown()
    print(json.dumps({"trace": f"{span.get_span_context().trace_id:032x}", "status": status, "upstream": upstream}))
