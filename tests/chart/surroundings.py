"""Steps of the chart's test: what the chart makes for others. Prometheus' operator finds the metrics, and a service asks for
changes by HTTP with its own rights."""

import json

from devlib import until

MONITORING = ("servicemonitors", "prometheusrules")

# As a service without a Kubernetes client would: a token and a body, one line with the answer.
ASK = """
import json, sys, urllib.error, urllib.request
url, token, body = sys.argv[1:]
headers = {"content-type": "application/json", **({"authorization": "Bearer " + token} if token else {})}
try:
    with urllib.request.urlopen(urllib.request.Request(url, body.encode() or None, headers), timeout=20) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as refused:
    print(refused.code, refused.read().decode())
"""


def stand_in(plural: str) -> dict:
    """A kind of Prometheus' operator, without its schema."""
    kind = {"servicemonitors": "ServiceMonitor", "prometheusrules": "PrometheusRule"}[plural]
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.monitoring.coreos.com"},
            "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
                     "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]}}


def prepare(chart) -> None:
    for plural in MONITORING:
        chart.kubectl("apply", "--validate=false", "-f", "-", stdin=json.dumps(stand_in(plural)))
        chart.kubectl("wait", "--for=condition=Established", "--timeout=30s", f"crd/{plural}.monitoring.coreos.com")


def clean(chart) -> None:
    names = (f"{plural}.monitoring.coreos.com" for plural in MONITORING)
    chart.kubectl("delete", "crd", "--ignore-not-found", "--timeout=30s", *names, ok=False)


def scraped(chart, need, name: str) -> str:
    """What Prometheus would get. A ServiceMonitor is right if what it selects has what it names."""
    monitor = chart.get("servicemonitors", "-n", chart.namespace, name)["spec"]
    labels = ",".join(f"{name}={value}" for name, value in monitor["selector"]["matchLabels"].items())
    [endpoint] = monitor["endpoints"]
    # Prometheus passes over those that lack the port.
    names = [service["metadata"]["name"] for service in chart.get("services", "-n", chart.namespace, "-l", labels)["items"]
             if any(port.get("name") == endpoint["port"] for port in service["spec"]["ports"])]
    need(len(names) == 1, f"it finds {names}")
    [name] = names
    path = f"/api/v1/namespaces/{chart.namespace}/services/{name}:{endpoint['port']}/proxy{endpoint['path']}"
    return chart.kubectl("get", "--raw", path)


def monitored(chart, need) -> str:
    need("gantry_leader" in scraped(chart, need, "gantry-operator"), "no metrics of the operator")
    rules = chart.get("prometheusrules", "-n", chart.namespace)["items"]
    alerts = [rule for one in rules for group in one["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
    files = list((chart.folder / "files/alerts").glob("*.yaml"))
    need(len(rules) == len(files) and alerts, f"{len(rules)} objects with {len(alerts)} alerts")
    dashboards = chart.get("configmaps", "-n", chart.namespace, "-l", "grafana_dashboard=1")["items"]
    boards = [json.loads(text)["title"] for one in dashboards for text in one["data"].values()]
    need(boards, "no dashboards")
    return f"{len(alerts)} alerts, {len(boards)} dashboards"


def asked(chart, need) -> str:
    """The endpoint for changes, with the rights and the audience that the chart sets up."""
    kubectl, work = chart.kubectl, chart.work
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asker"},
           "spec": {"serviceAccountName": "asker", "terminationGracePeriodSeconds": 0, "containers": [
               {"name": "asker", "image": chart.images.name("python"), "imagePullPolicy": "IfNotPresent",
                "command": ["sleep", "600"]}]}}
    for account in ("asker", "stranger"):
        kubectl("create", "serviceaccount", account, "-n", work)
    kubectl("create", "rolebinding", "asker", "-n", work, f"--serviceaccount={work}:asker",
            f"--clusterrole={chart.namespace}-gantry-operator-change-requester")
    kubectl("apply", "--validate=false", "-n", work, "-f", "-", stdin=json.dumps(pod))
    kubectl("wait", "--for=condition=Ready", "--timeout=60s", "-n", work, "pod/asker")

    def token(account: str, audience: str) -> str:
        return kubectl("create", "token", account, "-n", work, f"--audience={audience}").strip()

    def ask(token: str) -> tuple[int, str]:
        url = f"http://gantry-operator.{chart.namespace}:8082/v1/changes"
        body = json.dumps({"cluster": "none", "reason": "slow", "patch": {"replicas": {"sigmaGuard": 3}}, "id": "one"})
        words = kubectl("exec", "-n", work, "asker", "--", "python3", "-c", ASK, url, token, body)
        code, _, answer = words.partition(" ")
        return int(code), answer

    good = token("asker", "gantry-changes")
    need(until(lambda: ask(good)[0] in (200, 201), 30, 1), f"refused: {ask(good)}\n{chart.logs()}")
    for who, given in (("nobody", ""), ("a token for the API server", token("asker", "https://kubernetes.default.svc"))):
        need(ask(given)[0] == 401, f"{who} got in: {ask(given)}")
    need(ask(token("stranger", "gantry-changes"))[0] == 403, "somebody without the right got in")

    def change() -> dict:
        items = chart.get("infrastructurechanges", "-n", work)["items"]
        return items[0] if len(items) == 1 else {}

    need(until(lambda: change().get("status", {}).get("phase"), 30, 1), f"nobody looked at it: {change()}\n{chart.logs()}")
    phase = change()["status"]["phase"]
    need(f"system:serviceaccount:{work}:asker" in json.dumps(change()["metadata"]), f"asked by another: {change()}")
    kubectl("delete", "infrastructurechanges", "-n", work, "--all")
    kubectl("delete", "pod", "-n", work, "asker", "--wait=false")
    chart.no_complaints()
    return f"a request became an object, which is {phase}; others were refused"
