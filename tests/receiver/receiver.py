"""Receives jvmprobed's push requests over HTTP and gRPC, and prints each as a line of JSON.

    receiver.py [TLS-FILE]

With TLS-FILE, which contains a key and then a certificate, both ports use TLS. At the start, the receiver
prints "ready HTTP-PORT GRPC-PORT". Each line on standard input sets the mode, which determines how the next
requests are answered:

    ok                          accepts requests
    slow SECONDS                accepts requests after a delay
    status CODE [RETRY-AFTER]   answers with this HTTP status
    grpc CODE [RETRY-SECONDS]   answers with this gRPC status
    cut                         closes the connection without an answer
    page                        answers with an HTML page
    partial COUNT               accepts an OTLP request, but reports COUNT profiles as rejected
    endless                     sends an answer that never ends
    judge MAX-BYTES [CODE]      accepts or rejects each Pyroscope series by Pyroscope's rules
    reject NAME                 rejects OTLP requests that contain a resource with this service.name
    down                        answers 503, and does not decode requests

The receiver confirms each line with "mode MODE". The line "all" does not change the mode; its confirmation
follows all requests so far. Each request is printed with its complete content before it is answered. OTLP
is decoded with OpenTelemetry's Python classes, and Pyroscope's requests by this script. Profiles in pprof
format are passed on without decoding.
"""

import base64
import gzip
import json
import re
import ssl
import sys
import threading
import time
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from google.protobuf import duration_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2

mode = ["ok"]
lock = threading.Lock()


def print_json(**what):
    with lock:
        print(json.dumps(what), flush=True)


def fields(message):
    """Yields number and value of each field of a message (protobuf.dev, "Encoding")."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        elif tag & 7 == 2:
            size = varint()
            yield tag >> 3, message[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {tag & 7}")


def pyroscope(body):
    """Decodes a push.v1.PushRequest."""
    series = []
    for _, one in fields(body):
        labels, profiles = {}, []
        for number, value in fields(one):
            parts = dict(fields(value))
            if number == 1:
                labels[parts[1].decode()] = parts[2].decode()
            else:
                profiles.append(
                    {"id": parts[2].decode(), "pprof": base64.b64encode(parts[1]).decode()}
                )
        series.append({"labels": labels, "profiles": profiles})
    return series


def rejection(labels, names, raw, max_bytes):
    """Returns the reason for which Pyroscope rejects a series, or None.

    Source: ValidateLabels and ValidateProfile in pkg/validation/validate.go of Pyroscope, with the defaults
    of limits.go. The limit of bytes is a parameter.
    """
    if not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", labels.get("__name__", "")):
        return "invalid metric name"
    if not labels.get("service_name"):
        return "service name is not provided"
    if len(names) > 30:
        return "too many label names"
    if len(names) != len(set(names)):
        return "duplicate label name"
    for name, value in labels.items():
        if len(name) > 1024:
            return "label name too long"
        if len(value) > 2048:
            return "label value too long"
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name):
            return f"invalid label name '{name}'"
    profile = gzip.decompress(raw)
    if len(profile) > max_bytes:
        return "profile exceeds the size limit"
    # Field numbers of Profile in profile.proto: 1 for sample types, 2 for samples, 6 for strings.
    types, samples, strings = [], 0, []
    for number, value in fields(profile):
        if number == 1:
            types.append(dict(fields(value)).get(1, 0))
        samples += number == 2
        if number == 6:
            strings.append(value.decode())
    if samples > 16000:
        return "profile exceeds the samples count limit"
    if any("-" in strings[at] for at in types):
        return "sample type contains -"
    return None


def judge(body, max_bytes):
    """Judges each series of a request. Returns the IDs of accepted profiles, and an error if there is any."""
    accepted, error = [], None
    for _, one in fields(body):
        labels, names, profiles = {}, [], []
        for number, value in fields(one):
            parts = dict(fields(value))
            if number == 1:
                names.append(parts[1].decode())
                labels[names[-1]] = parts.get(2, b"").decode()
            else:
                profiles.append((parts[2].decode(), parts[1]))
        for id, raw in profiles:
            why = rejection(labels, names, raw, max_bytes)
            if why is None:
                accepted.append(id)
            else:
                error = why
    return accepted, error


def has_service(decoded, name):
    return any(p["resource"]["service.name"] == name for p in decoded.get("profiles", []))


def value_of(value):
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind else None


def attributes(all):
    return {one.key: value_of(one.value) for one in all}


def profiles(request):
    dictionary = request.dictionary
    text = dictionary.string_table
    for table in (
        dictionary.string_table,
        dictionary.stack_table,
        dictionary.location_table,
        dictionary.function_table,
        dictionary.mapping_table,
        dictionary.attribute_table,
        dictionary.link_table,
    ):
        assert len(table) > 0 and not table[0] or table[0] == type(table[0])(), "no zero value"

    def frame(index):
        location = dictionary.location_table[index]
        line = location.lines[0]
        function = dictionary.function_table[line.function_index]
        kinds = [
            value_of(dictionary.attribute_table[at].value)
            for at in location.attribute_indices
            if text[dictionary.attribute_table[at].key_strindex] == "profile.frame.type"
        ]
        return {
            "name": text[function.name_strindex],
            "file": text[function.filename_strindex],
            "line": line.line,
            "module": text[dictionary.mapping_table[location.mapping_index].filename_strindex],
            "kind": kinds[0] if kinds else None,
        }

    def link(index):
        if index == 0:
            return None
        found = dictionary.link_table[index]
        return {"trace_id": found.trace_id.hex(), "span_id": found.span_id.hex()}

    decoded = []
    for resource in request.resource_profiles:
        for scope in resource.scope_profiles:
            for profile in scope.profiles:
                decoded.append(
                    {
                        "resource": attributes(resource.resource.attributes),
                        "scope": scope.scope.name,
                        "type": [
                            text[profile.sample_type.type_strindex],
                            text[profile.sample_type.unit_strindex],
                        ],
                        "period_type": [
                            text[profile.period_type.type_strindex],
                            text[profile.period_type.unit_strindex],
                        ],
                        "period": profile.period,
                        "time": profile.time_unix_nano,
                        "duration": profile.duration_nano,
                        "id": profile.profile_id.hex(),
                        "samples": [
                            {
                                "stack": [
                                    frame(at)
                                    for at in dictionary.stack_table[sample.stack_index].location_indices
                                ],
                                "values": list(sample.values),
                                "link": link(sample.link_index),
                                "attributes": {
                                    text[dictionary.attribute_table[at].key_strindex]: value_of(
                                        dictionary.attribute_table[at].value
                                    )
                                    for at in sample.attribute_indices
                                },
                            }
                            for sample in profile.samples
                        ],
                    }
                )
    return decoded


def metrics(request):
    decoded = []
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                data = getattr(metric, kind)
                for point in data.data_points:
                    one = {
                        "resource": attributes(resource.resource.attributes),
                        "name": metric.name,
                        "unit": metric.unit,
                        "kind": kind,
                        "labels": attributes(point.attributes),
                    }
                    if kind == "exponential_histogram":
                        one |= {
                            "count": point.count,
                            "sum": point.sum,
                            "scale": point.scale,
                            "offset": point.positive.offset,
                            "buckets": list(point.positive.bucket_counts),
                        }
                    else:
                        one["value"] = point.as_double
                    decoded.append(one)
    return decoded


def decode(path, body):
    if path.endswith("/push.v1.PusherService/Push"):
        return {"pyroscope": pyroscope(body)}
    if path.endswith("/v1development/profiles"):
        request = profiles_service_pb2.ExportProfilesServiceRequest.FromString(body)
        return {"profiles": profiles(request)}
    if path.endswith("/v1/metrics"):
        request = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
        return {"metrics": metrics(request)}
    return {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        now = mode[0]
        arguments = now.split()
        headers = {name.lower(): value for name, value in self.headers.items()}
        decoded = {} if arguments[0] == "down" else decode(self.path, body)
        if arguments[0] == "judge":
            decoded["accepted"], decoded["error"] = judge(body, int(arguments[1]))
        print_json(path=self.path, mode=now, headers=headers, **decoded)
        code, answer, extra = 200, b"", {}
        if arguments[0] == "slow":
            time.sleep(float(arguments[1]))
        elif arguments[0] == "down":
            code = 503
        elif arguments[0] == "status":
            code, answer = int(arguments[1]), b"not now\n"
            if len(arguments) > 2:
                extra["retry-after"] = arguments[2]
        elif arguments[0] == "cut":
            self.close_connection = True
            self.connection.close()
            return
        elif arguments[0] == "page":
            answer, extra = b"<html>hello</html>", {"content-type": "text/html"}
        elif arguments[0] == "reject" and has_service(decoded, arguments[1]):
            code, answer = 400, b"not this one\n"
        elif arguments[0] == "judge" and decoded["error"]:
            code = int(arguments[2]) if len(arguments) > 2 else 400
            answer = json.dumps({"code": "invalid_argument", "message": decoded["error"]}).encode()
        elif arguments[0] == "endless":
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            try:
                while True:
                    self.wfile.write(bytes(1 << 16))
            except OSError:
                return
        elif arguments[0] == "partial":
            partial = profiles_service_pb2.ExportProfilesServiceResponse()
            partial.partial_success.rejected_profiles = int(arguments[1])
            partial.partial_success.error_message = "too old"
            answer = partial.SerializeToString()
        try:
            self.send_response(code)
            for name, value in extra.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
        except OSError:
            pass

    def log_message(self, *_):
        pass


def answer_grpc(name, request, decoder, response, context):
    headers = {one.key: str(one.value) for one in context.invocation_metadata()}
    now = mode[0]
    decoded = decoder(request)
    print_json(path=name, mode=now, headers=headers, **decoded)
    arguments = now.split()
    if arguments[0] == "reject" and has_service(decoded, arguments[1]):
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not this one")
    if arguments[0] == "slow":
        time.sleep(float(arguments[1]))
    elif arguments[0] == "partial":
        response.partial_success.rejected_profiles = int(arguments[1])
    elif arguments[0] == "grpc":
        code = {c.value[0]: c for c in grpc.StatusCode}[int(arguments[1])]
        if len(arguments) > 2:
            # A google.rpc.Status that contains a google.rpc.RetryInfo, encoded by hand.
            delay = duration_pb2.Duration(seconds=int(arguments[2])).SerializeToString()
            info = b"\x0a" + bytes([len(delay)]) + delay
            url = b"type.googleapis.com/google.rpc.RetryInfo"
            any = b"\x0a" + bytes([len(url)]) + url + b"\x12" + bytes([len(info)]) + info
            status = b"\x08" + bytes([int(arguments[1])]) + b"\x1a" + bytes([len(any)]) + any
            context.set_trailing_metadata((("grpc-status-details-bin", status),))
        context.abort(code, "not now")
    return response


def export_profiles(request, context):
    """Answers a unary call of the client with a stream.

    A client receives a stream of one message in the same way as a unary answer. In mode endless, the stream
    does not end, so the client receives more than one message.
    """
    decoder = lambda request: {"profiles": profiles(request)}
    response = profiles_service_pb2.ExportProfilesServiceResponse()
    yield answer_grpc("grpc profiles", request, decoder, response, context)
    while mode[0] == "endless" and context.is_active():
        response.partial_success.error_message = "x" * (1 << 16)
        yield response


PROFILES = grpc.method_handlers_generic_handler(
    "opentelemetry.proto.collector.profiles.v1development.ProfilesService",
    {
        "Export": grpc.unary_stream_rpc_method_handler(
            export_profiles,
            request_deserializer=profiles_service_pb2.ExportProfilesServiceRequest.FromString,
            response_serializer=profiles_service_pb2.ExportProfilesServiceResponse.SerializeToString,
        )
    },
)


class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def Export(self, request, context):
        decoder = lambda request: {"metrics": metrics(request)}
        response = metrics_service_pb2.ExportMetricsServiceResponse()
        return answer_grpc("grpc metrics", request, decoder, response, context)


def main():
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if len(sys.argv) > 1:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[1])
        http.socket = context.wrap_socket(http.socket, server_side=True)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers((PROFILES,))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    if len(sys.argv) > 1:
        text = open(sys.argv[1], "rb").read()
        begin = text.index(b"-----BEGIN CERTIFICATE")
        pair = (text[:begin], text[begin:])
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print("ready", http.server_address[1], port, flush=True)
    for line in sys.stdin:
        if line.strip() != "all":
            mode[0] = line.strip()
        with lock:
            print("mode", mode[0], flush=True)
    server.stop(None)


main()
