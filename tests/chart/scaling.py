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


def objects(gantry: str, python: str, api: str) -> list[dict]:
    labels = {"app": MODEL}
    server = {"name": "server", "image": python, "imagePullPolicy": "IfNotPresent", "command": ["python3", "-c", SERVER],
              "lifecycle": {"preStop": {"httpGet": {"path": "/idle", "port": 9114}}}}
    proxy = {"name": "model-proxy", "image": gantry, "imagePullPolicy": "IfNotPresent",
             "args": ["model-proxy", "--listen", "0.0.0.0:11434", "--upstream", "http://127.0.0.1:11435",
                      "--model", MODEL, "--metrics", "0.0.0.0:9114"],
             "ports": [{"containerPort": 11434}, {"name": "metrics", "containerPort": 9114}],
             "readinessProbe": {"httpGet": {"path": "/healthz", "port": 9114}, "periodSeconds": 1}}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": MODEL},
         "spec": {"replicas": 1, "selector": {"matchLabels": labels},
                  "template": {"metadata": {"labels": labels}, "spec": {"containers": [server, proxy]}}}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": MODEL},
         "spec": {"selector": labels, "ports": [{"port": 11434}]}},
        {"apiVersion": api, "kind": "HorizontalPodAutoscaler", "metadata": {"name": MODEL},
         "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": MODEL},
                  "minReplicas": 1, "maxReplicas": 3,
                  "metrics": [
                      {"type": "Pods", "pods": {"metric": {"name": "gantry_model_queue_depth"},
                                                "target": {"type": "AverageValue", "averageValue": "1"}}},
                      {"type": "External", "external": {
                          "metric": {"name": "gantry_model_requests_per_second",
                                     "selector": {"matchLabels": {"app": MODEL, "model": MODEL}}},
                          "target": {"type": "AverageValue", "averageValue": "100"}}}]}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "clients"},
         "spec": {"terminationGracePeriodSeconds": 0, "containers": [
             {"name": "clients", "image": python, "imagePullPolicy": "IfNotPresent",
              "command": ["python3", "-c", CLIENTS]}]}},
    ]


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
        items = raw(f"{EXTERNAL}/namespaces/{chart.work}/{metric}?labelSelector=app%3D{MODEL}%2Cmodel%3D{MODEL}")["items"]
        return [float(i["value"][:-1]) / 1000 if i["value"].endswith("m") else float(i["value"]) for i in items]

    def replicas() -> int:
        return chart.get("deployment", "-n", chart.work, MODEL)["spec"]["replicas"]

    def autoscaler() -> str:
        return chart.kubectl("describe", "hpa", "-n", chart.work, MODEL, ok=False)

    need(until(available, 60, 1), "the APIs are not available:\n" + chart.kubectl("get", "apiservices"))
    names = {resource["name"] for resource in raw(EXTERNAL)["resources"]}
    need("gantry_model_queue_depth" in names, f"there are only {names}")

    versions = chart.kubectl("api-versions").split()
    api = next(version for version in ("autoscaling/v2", "autoscaling/v2beta2") if version in versions)
    gantry = f"{chart.images.name('gantry')}"
    begin = time.monotonic()
    for one in objects(gantry, chart.images.name("python"), api):
        chart.kubectl("apply", "--validate=false", "-n", chart.work, "-f", "-", stdin=json.dumps(one))
    need(until(lambda: sum(values("gantry_model_queue_depth")) >= 3, 60, 1),
         f"nobody waits: {values('gantry_model_queue_depth')}\n{chart.logs()}")
    for version in ("v1beta1", "v1beta2"):
        path = f"{CUSTOM}/{version}/namespaces/{chart.work}/pods/*/gantry_model_in_flight?labelSelector=app%3D{MODEL}"
        need(raw(path)["items"][0]["describedObject"]["name"].startswith(f"{MODEL}-"), f"{version} tells of another")
    need(until(lambda: replicas() == 3, 90, 1), f"it does not scale up\n{autoscaler()}")
    up = time.monotonic() - begin
    told = {metric["type"] for metric in chart.get("hpa." + api.partition("/")[2] + ".autoscaling", "-n", chart.work,
                                                   MODEL)["status"]["currentMetrics"]}
    need(told == {"Pods", "External"}, f"the autoscaler knows {told} only\n{autoscaler()}")
    need(sum(values("gantry_model_requests_per_second")) > 0.5, "no rate")

    service = f"https://gantry-metrics.{chart.namespace}.svc{EXTERNAL}/namespaces/{chart.work}/gantry_model_queue_depth"
    refused = chart.kubectl("exec", "-n", chart.work, "clients", "--", "python3", "-c", STRANGER, service)
    need(refused.split("\n")[:2] == ["401 Unauthorized"] * 2, f"a stranger got in: {refused}")
    nobody = chart.kubectl("get", "--raw", f"{EXTERNAL}/namespaces/{chart.work}/gantry_model_queue_depth", "--as=nobody",
                           ok=False)
    need("forbidden" in nobody.lower(), f"a user without rights got: {nobody}")

    begin = time.monotonic()
    chart.kubectl("delete", "pod", "-n", chart.work, "clients", "--wait=false")
    need(until(lambda: replicas() == 1, 150, 1), f"it does not scale down\n{autoscaler()}")
    down = time.monotonic() - begin
    chart.kubectl("delete", "-n", chart.work, "hpa,deployment,service", MODEL, "--wait=false")
    chart.no_complaints()
    return f"1 to 3 in {up:.0f} s, 3 to 1 in {down:.0f} s, strangers refused"
