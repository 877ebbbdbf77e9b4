"""A step of the chart's test: a plain HorizontalPodAutoscaler scales by what the counting proxy sees, served by the
operator itself, and nobody but the API server gets an answer."""

import json
import time

from devlib import until

MODEL = "slow"

# Stands in for Ollama: one request at a time, half a second each.
SERVER = """
import http.server, json, threading, time
turn = threading.Lock()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        with turn:
            time.sleep(0.5)
        body = json.dumps({"model": "slow", "done": True, "prompt_eval_count": 3, "eval_count": 5}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 11435), Handler).serve_forever()
"""

# Eight clients that ask, and ask again when they have their answer.
CLIENTS = """
import json, threading, urllib.request
def ask():
    while True:
        request = urllib.request.Request("http://slow:11434/api/chat", json.dumps({"model": "slow"}).encode())
        try:
            urllib.request.urlopen(request, timeout=60).read()
        except OSError:
            pass
for _ in range(8):
    threading.Thread(target=ask).start()
"""

# Somebody in the cluster who is not the API server.
STRANGER = """
import json, ssl, sys, urllib.error, urllib.request
context = ssl._create_unverified_context()
for headers in ({}, {"X-Remote-User": "system:admin", "X-Remote-Group": "system:masters"}):
    request = urllib.request.Request(sys.argv[1], headers=headers)
    try:
        print(urllib.request.urlopen(request, context=context, timeout=20).status)
    except urllib.error.HTTPError as refused:
        print(refused.code, json.loads(refused.read())["reason"])
"""

EXTERNAL = "/apis/external.metrics.k8s.io/v1beta1"
CUSTOM = "/apis/custom.metrics.k8s.io"


# What the autoscaler goes by: the one with the one Helm, the other with the other, since it is minutes each.
METRICS = {
    "helm3": {"type": "Pods", "pods": {
        "metric": {"name": "gantry_model_queue_depth"}, "target": {"type": "AverageValue", "averageValue": "1"}}},
    "helm4": {"type": "External", "external": {
        "metric": {"name": "gantry_model_requests_per_second",
                   "selector": {"matchLabels": {"app": MODEL, "model": MODEL}}},
        "target": {"type": "AverageValue", "averageValue": "1"}}},
}


def model(gantry: str, python: str) -> list[dict]:
    labels = {"app": MODEL}
    server = {"name": "server", "image": python, "imagePullPolicy": "IfNotPresent",
              "command": ["python3", "-c", SERVER],
              "lifecycle": {"preStop": {"httpGet": {"path": "/idle", "port": 9114}}}}
    proxy = {"name": "model-proxy", "image": gantry, "imagePullPolicy": "IfNotPresent",
             "args": ["model-proxy", "--listen", "0.0.0.0:11434", "--upstream", "http://127.0.0.1:11435",
                      "--model", MODEL, "--metrics", "0.0.0.0:9114"],
             "ports": [{"containerPort": 11434}, {"name": "metrics", "containerPort": 9114}],
             "readinessProbe": {"httpGet": {"path": "/healthz", "port": 9114}, "periodSeconds": 1}}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": MODEL},
         "spec": {"replicas": 1, "selector": {"matchLabels": labels},
                  "template": {"metadata": {"labels": labels}, "spec": {
                      "terminationGracePeriodSeconds": 5, "containers": [server, proxy]}}}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": MODEL},
         "spec": {"selector": labels, "ports": [{"port": 11434}]}},
    ]


def autoscaler(api: str, metric: dict) -> dict:
    return {"apiVersion": api, "kind": "HorizontalPodAutoscaler", "metadata": {"name": MODEL},
            "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": MODEL},
                     "minReplicas": 1, "maxReplicas": 3, "metrics": [metric]}}


def clients(python: str) -> dict:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "clients"},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [
                {"name": "clients", "image": python, "imagePullPolicy": "IfNotPresent",
                 "command": ["python3", "-c", CLIENTS]}]}}


def scale(chart, need) -> str:
    """A release with the metrics API is there; `chart` is the one of tests/chart/run."""
    def raw(path: str, *more) -> dict:
        return json.loads(chart.kubectl("get", "--raw", path, *more))

    def available() -> bool:
        services = chart.get("apiservices", "-l", "app.kubernetes.io/component=operator")["items"]
        return len(services) == 3 and all(
            any(c["type"] == "Available" and c["status"] == "True" for c in service["status"].get("conditions", []))
            for service in services)

    def values(metric: str) -> list[float]:
        selector = f"labelSelector=app%3D{MODEL}%2Cmodel%3D{MODEL}"
        items = raw(f"{EXTERNAL}/namespaces/{chart.work}/{metric}?{selector}")["items"]
        return [float(i["value"][:-1]) / 1000 if i["value"].endswith("m") else float(i["value"]) for i in items]

    def replicas() -> int:
        return chart.get("deployment", "-n", chart.work, MODEL)["spec"]["replicas"]

    def told() -> str:
        return chart.kubectl("describe", "hpa", "-n", chart.work, MODEL, ok=False)

    def apply(one: dict) -> None:
        chart.kubectl("apply", "--validate=false", "-n", chart.work, "-f", "-", stdin=json.dumps(one))

    need(until(available, 60, 1), "the APIs are not available:\n" + chart.kubectl("get", "apiservices"))
    # Available is said a moment before the API server passes requests on.
    need(until(lambda: "gantry_model" in chart.kubectl("get", "--raw", EXTERNAL, ok=False), 30, 1), "it is not served")
    names = {resource["name"] for resource in raw(EXTERNAL)["resources"]}
    need("gantry_model_queue_depth" in names, f"there are only {names}")

    versions = chart.kubectl("api-versions").split()
    api = next(version for version in ("autoscaling/v2", "autoscaling/v2beta2") if version in versions)
    gantry, python = chart.images.name("gantry"), chart.images.name("python")
    for one in model(gantry, python):
        apply(one)
    apply(autoscaler(api, METRICS[chart.major]))
    apply(clients(python))
    begin = time.monotonic()
    need(until(lambda: replicas() == 3, 120, 1), f"it does not scale up\n{told()}\n{chart.logs()}")
    up = time.monotonic() - begin
    answers(chart, need, raw, values)
    begin = time.monotonic()
    chart.kubectl("delete", "pod", "-n", chart.work, "clients")
    need(until(lambda: replicas() == 1, 150, 1), f"it does not scale down\n{told()}\n{chart.logs()}")
    down = time.monotonic() - begin
    chart.kubectl("delete", "-n", chart.work, "hpa,deployment,service", MODEL, "--wait=false")
    chart.no_complaints()
    metric = METRICS[chart.major]
    return f"by {metric[metric['type'].lower()]['metric']['name']}: 1 to 3 in {up:.0f} s, 3 to 1 in {down:.0f} s"


def answers(chart, need, raw, values) -> None:
    """What is told, and to whom it is not."""
    need(until(lambda: sum(values("gantry_model_queue_depth")) >= 2, 30, 1), "nobody waits")
    need(until(lambda: sum(values("gantry_model_requests_per_second")) > 1, 30, 1), "no rate")
    for version in ("v1beta1", "v1beta2"):
        path = f"{CUSTOM}/{version}/namespaces/{chart.work}/pods/*/gantry_model_in_flight?labelSelector=app%3D{MODEL}"
        need(raw(path)["items"][0]["describedObject"]["name"].startswith(f"{MODEL}-"), f"{version} tells of another")
    path = f"{EXTERNAL}/namespaces/{chart.work}/gantry_model_queue_depth"
    address = f"https://gantry-metrics.{chart.namespace}.svc{path}"
    refused = chart.kubectl("exec", "-n", chart.work, "clients", "--", "python3", "-c", STRANGER, address)
    need(refused.split("\n")[:2] == ["401 Unauthorized"] * 2, f"a stranger got in: {refused}")
    nobody = chart.kubectl("get", "--raw", path, "--as=nobody", ok=False)
    need("forbidden" in nobody.lower(), f"a user without rights got: {nobody}")
