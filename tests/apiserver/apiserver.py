"""A stand-in for the API server of Kubernetes and for a node: serves pods to kubectl, and runs commands in them.

    apiserver.py CONFIG

CONFIG is a JSON file: "pods" and "workloads" have the pods and Deployments that exist at the start, "tools" is a directory with jvmprobe's binaries,
"state" is the directory that pods see as /var/lib/jvmprobe, and "root" is an empty directory. At the start, this
script prints "ready PORT". Each line on standard input is a command:

    forbid VERB RESOURCE    denies a right from now on, as RBAC does: "forbid create pods/exec"
    restrict NAMESPACE      sets the Pod Security level "baseline", which forbids hostPID
    fail REASON             pods that are created from now on wait with this reason
    state                   prints the names of pods that were created and still exist, the PIDs of processes that
                            run in pods, and the manifests of all pods that were created, as a line of JSON

All other commands are confirmed by the line "done". A process in a pod has the root file system of jvmprobe's image,
which is read-only, the host's PID namespace, and exactly the capabilities of the pod's container. As containerd does,
the server closes the standard input of a process when the connection breaks, and does not end the process.
"""

import base64
import copy
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

USER = "jane"
STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255
PROTOCOL = "v5.channel.k8s.io"

# Starts "$@" in a container. The root directory is read-only, and consists of mounts only.
CONTAINER = r"""
set -e
mount -t tmpfs root "$ROOT"
cd "$ROOT"
mkdir -p proc sys dev lib lib64 usr/lib usr/sbin var/lib/jvmprobe
touch setpriv
mount -t proc proc proc
mount --rbind /sys sys
mount -t tmpfs dev dev
mkdir dev/shm
for device in null zero urandom; do touch dev/$device; mount --bind /dev/$device dev/$device; done
mount -t tmpfs -o mode=1777 shm dev/shm
for dir in lib lib64 usr/lib; do mount --rbind -o ro /$dir $dir; done
mount --bind "$(command -v setpriv)" setpriv
mount --bind -o ro "$TOOLS" usr/sbin
mount --bind "$STATE" var/lib/jvmprobe
mount -o remount,ro "$ROOT"
exec chroot . /setpriv --bounding-set "$CAPABILITIES" --inh-caps=-all -- "$@"
"""

lock = threading.Lock()
config = json.load(open(sys.argv[1], encoding="utf-8"))
pods = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in config["pods"]}
workloads = {(item["metadata"]["namespace"], item["metadata"]["name"]): item for item in config["workloads"]}
namespaces = {namespace for namespace, _ in pods} | {"jvmprobe"}
created, forbidden, restricted, waiting = [], set(), set(), []
# Main process of each created pod, and all processes.
mains, processes = {}, []


def start(pod, container, command):
    """Starts a command in a container of a pod."""
    security = container.get("securityContext", {}).get("capabilities", {})
    assert security.get("drop") == ["ALL"], security
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "ROOT": config["root"],
        "TOOLS": config["tools"],
        "STATE": config["state"],
        "CAPABILITIES": ",".join(["-all"] + ["+" + name.lower() for name in security["add"]]),
    }
    assert pod["spec"]["hostPID"] and container["securityContext"]["readOnlyRootFilesystem"], pod
    unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", CONTAINER, "container"]
    process = subprocess.Popen(
        unshare + command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with lock:
        processes.append(process)
    return process


def status(code, reason, message, **more):
    """Returns a Status object with its HTTP code."""
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return code, {**body, "message": message, "reason": reason, "code": code, **more}


def may(verb, resource):
    return f"{verb} {resource}" not in forbidden


def denied(verb, resource, name, namespace):
    """Returns the answer to a request without the right for it."""
    message = f'pods "{name}" is forbidden: User "{USER}" cannot {verb} resource "{resource}" in API group "" in the namespace "{namespace}"'
    return status(403, "Forbidden", message)


def field(pod, path):
    for key in path.split("."):
        pod = pod.get(key, {})
    return pod


def matches(pod, query):
    labels = [label.split("=") for text in query.get("labelSelector", []) for label in text.split(",")]
    fields = [pair.split("=") for text in query.get("fieldSelector", []) for pair in text.split(",")]
    return all(pod["metadata"].get("labels", {}).get(key) == value for key, value in labels) and all(
        field(pod, key) == value for key, value in fields
    )


def get(path, query):
    resources = [
        {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["create", "delete", "get", "list"], "shortNames": ["po"]},
        {"name": "pods/exec", "singularName": "", "namespaced": True, "kind": "PodExecOptions", "verbs": ["create", "get"]},
    ]
    reviews = [{"name": "selfsubjectaccessreviews", "singularName": "", "namespaced": False, "kind": "SelfSubjectAccessReview", "verbs": ["create"]}]
    deployments = [{"name": "deployments", "singularName": "deployment", "namespaced": True, "kind": "Deployment", "verbs": ["get"], "shortNames": ["deploy"]}]
    groups = []
    for group in ("authorization.k8s.io", "apps"):
        version = {"groupVersion": f"{group}/v1", "version": "v1"}
        groups.append({"name": group, "versions": [version], "preferredVersion": version})
    match path.strip("/").split("/"):
        case ["version"]:
            return 200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
        case ["api"]:
            return 200, {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["api", "v1"]:
            return 200, {"kind": "APIResourceList", "groupVersion": "v1", "resources": resources}
        case ["apis", "authorization.k8s.io", "v1"]:
            return 200, {"kind": "APIResourceList", "groupVersion": "authorization.k8s.io/v1", "resources": reviews}
        case ["apis", "apps", "v1"]:
            return 200, {"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": deployments}
        case ["apis", "apps", "v1", "namespaces", namespace, "deployments", name]:
            if not may("get", "deployments"):
                return denied("get", "deployments", name, namespace)
            workload = workloads.get((namespace, name))
            if workload is None:
                return status(404, "NotFound", f'deployments.apps "{name}" not found', details={"name": name, "kind": "deployments"})
            return 200, workload
        case ["api", "v1", "namespaces", name] if name in namespaces:
            return 200, {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}}
        case ["api", "v1", "namespaces", name]:
            return status(404, "NotFound", f'namespaces "{name}" not found', details={"name": name, "kind": "namespaces"})
        case ["api", "v1", "namespaces", namespace, "pods"]:
            if not may("list", "pods"):
                return denied("list", "pods", "", namespace)
            items = [pod for (at, _), pod in pods.items() if at == namespace and matches(pod, query)]
            return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}
        case ["api", "v1", "namespaces", namespace, "pods", name]:
            if not may("get", "pods"):
                return denied("get", "pods", name, namespace)
            pod = pods.get((namespace, name))
            if pod is None:
                return status(404, "NotFound", f'pods "{name}" not found', details={"name": name, "kind": "pods"})
            # A created pod is pending when it is read for the first time.
            answer = copy.deepcopy(pod)
            if pod["status"]["phase"] == "Pending" and not waiting:
                pod["status"]["phase"] = "Running"
            return 200, answer
    return status(404, "NotFound", "the server could not find the requested resource")


def protobuf(data):
    """Returns the fields of a message, all of which are byte strings, by number."""

    def varint():
        nonlocal data
        value = shift = 0
        while True:
            byte, data = data[0], data[1:]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    fields = {}
    while data:
        key, size = varint(), varint()
        assert key & 7 == 2, key
        fields[key >> 3], data = data[:size], data[size:]
    return fields


def post(path, body):
    match path.strip("/").split("/"):
        case ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"]:
            # kubectl sends SelfSubjectAccessReview.spec.resourceAttributes within runtime.Unknown.raw.
            attributes = protobuf(protobuf(protobuf(protobuf(body.removeprefix(b"k8s\0"))[2])[2])[1])
            verb, resource, subresource = (attributes.get(number, b"").decode() for number in (2, 5, 6))
            allowed = may(verb, "/".join(filter(None, [resource, subresource])))
            review = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {}, "spec": {}}
            return 201, {**review, "status": {"allowed": allowed}}
        case ["api", "v1", "namespaces", namespace, "pods"]:
            return create(namespace, json.loads(body))
    return status(404, "NotFound", "the server could not find the requested resource")


def create(namespace, pod):
    name = pod["metadata"]["name"]
    if not may("create", "pods"):
        return denied("create", "pods", name, namespace)
    if namespace not in namespaces:
        return status(404, "NotFound", f'namespaces "{namespace}" not found', details={"name": namespace, "kind": "namespaces"})
    if namespace in restricted and pod["spec"].get("hostPID"):
        level = 'violates PodSecurity "baseline:latest": host namespaces (hostPID=true), non-default capabilities'
        return status(403, "Forbidden", f'pods "{name}" is forbidden: {level}')
    pod["metadata"]["namespace"] = namespace
    created.append(copy.deepcopy(pod))
    container = pod["spec"]["containers"][0]
    state = {"waiting": {"reason": waiting[0], "message": "it fails on purpose"}} if waiting else {"running": {}}
    pod["status"] = {"phase": "Pending", "containerStatuses": [{"name": container["name"], "state": state, "lastState": {}}]}
    pods[namespace, name] = pod
    if not waiting:
        mains[namespace, name] = start(pod, container, container["command"])
    return 201, pod


def delete(path):
    namespace, name = path.strip("/").split("/")[3::2]
    if not may("delete", "pods"):
        return denied("delete", "pods", name, namespace)
    pod = pods.pop((namespace, name), None)
    if pod is None:
        return status(404, "NotFound", f'pods "{name}" not found', details={"name": name, "kind": "pods"})
    main = mains.pop((namespace, name), None)
    if main:
        # The kubelet sends SIGTERM, and SIGKILL when the grace period is over.
        main.terminate()
        threading.Timer(1, main.kill).start()
    return 200, pod


class Channels:
    """The server's end of a WebSocket connection with the subprotocol v5.channel.k8s.io."""

    def __init__(self, reader, connection):
        self.reader, self.connection, self.lock = reader, connection, threading.Lock()

    def send_frame(self, opcode, data):
        size = len(data)
        if size < 126:
            length = bytes([size])
        elif size < 1 << 16:
            length = bytes([126]) + struct.pack(">H", size)
        else:
            length = bytes([127]) + struct.pack(">Q", size)
        with self.lock:
            self.connection.sendall(bytes([0x80 | opcode]) + length + data)

    def send(self, channel, data):
        self.send_frame(2, bytes([channel]) + data)

    def read_exactly(self, size):
        data = self.reader.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def receive(self):
        """Returns the next message as (channel, data), or None at the end of the connection."""
        message = b""
        while True:
            first, second = self.read_exactly(2)
            size = second & 127
            if size == 126:
                size = struct.unpack(">H", self.read_exactly(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self.read_exactly(8))[0]
            mask = self.read_exactly(4) if second & 0x80 else bytes(4)
            data = bytes(byte ^ mask[i % 4] for i, byte in enumerate(self.read_exactly(size)))
            opcode = first & 15
            if opcode == 8:
                return None
            if opcode == 9:
                self.send_frame(10, data)
            elif opcode in (0, 1, 2):
                message += data
                if first & 0x80:
                    return message[0], message[1:]


def copy_output(process, stream, channel, channels):
    """Sends a process's output. If the connection is broken, reads and discards the output."""
    while data := stream.read1(65536):
        try:
            channels.send(channel, data)
        except OSError:
            pass


def copy_input(process, channels):
    """Passes on what arrives for the process's standard input, and closes it at the end, or if the connection breaks."""
    is_open = True
    try:
        while message := channels.receive():
            channel, data = message
            if is_open and channel == STDIN:
                process.stdin.write(data)
                process.stdin.flush()
            elif is_open and channel == CLOSE and data[0] == STDIN:
                process.stdin.close()
                is_open = False
    except (EOFError, OSError):
        pass
    if is_open:
        try:
            process.stdin.close()
        except OSError:
            pass


def serve_process(process, channels, has_input):
    threads = [
        threading.Thread(target=copy_output, args=(process, process.stdout, STDOUT, channels)),
        threading.Thread(target=copy_output, args=(process, process.stderr, STDERR, channels)),
    ]
    if not has_input:
        process.stdin.close()
    threading.Thread(target=copy_input, args=(process, channels), daemon=True).start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    code = process.wait()
    code = 128 - code if code < 0 else code
    result = {"metadata": {}, "status": "Success"}
    if code:
        causes = [{"reason": "ExitCode", "message": str(code)}]
        message = f"command terminated with non-zero exit code: {code}"
        result = {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "message": message, "details": {"causes": causes}}
    try:
        channels.send(ERROR, json.dumps(result).encode())
        channels.send_frame(8, struct.pack(">H", 1000))
    except OSError:
        pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format, *args):
        pass

    def answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_GET(self):
        url = urlsplit(self.path)
        if url.path.endswith("/exec"):
            return self.exec(url)
        return self.answer(*get(url.path, parse_qs(url.query)))

    def do_POST(self):
        url, body = urlsplit(self.path), self.body()
        if url.path.endswith("/exec"):
            return self.exec(url)
        return self.answer(*post(url.path, body))

    def do_DELETE(self):
        self.body()
        self.answer(*delete(urlsplit(self.path).path))

    def exec(self, url):
        """Runs a command in a container. Only WebSocket is supported, which kubectl tries first."""
        namespace, name = url.path.strip("/").split("/")[3:6:2]
        if not may("create", "pods/exec"):
            return self.answer(*denied("create", "pods/exec", name, namespace))
        pod = pods.get((namespace, name))
        if pod is None:
            return self.answer(*status(404, "NotFound", f'pods "{name}" not found'))
        offered = self.headers.get("Sec-WebSocket-Protocol", "").replace(" ", "").split(",")
        if self.headers.get("Upgrade", "").lower() != "websocket" or PROTOCOL not in offered:
            return self.answer(*status(400, "BadRequest", "this server supports WebSocket only"))
        query = parse_qs(url.query)
        [container] = [it for it in pod["spec"]["containers"] if [it["name"]] == query["container"]]
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.send_header("Sec-WebSocket-Protocol", PROTOCOL)
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        channels = Channels(self.rfile, self.connection)
        serve_process(start(pod, container, query["command"]), channels, query.get("stdin") == ["true"])


def session(pid):
    """Returns the session of a process. Each command in a pod has a session of its own."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def report():
    """Returns what the line "state" prints."""
    with lock:
        sessions = {process.pid for process in processes}
        # Reaps those that have ended.
        for process in processes:
            process.poll()
    running = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if session(pid) in sessions]
    own = {(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in created}
    return {"pods": [name for namespace, name in pods if (namespace, name) in own], "processes": running, "created": created}


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready", server.server_address[1], flush=True)
    try:
        for line in sys.stdin:
            match line.split():
                case ["forbid", verb, resource]:
                    forbidden.add(f"{verb} {resource}")
                case ["restrict", namespace]:
                    restricted.add(namespace)
                case ["fail", reason]:
                    waiting.append(reason)
                case ["end"]:
                    break
                case ["state"]:
                    print(json.dumps(report()), flush=True)
                    continue
            print("done", flush=True)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


main()
