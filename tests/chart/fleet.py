"""A step of the chart's test: the fleet server with a PostgreSQL of its own, and then with one that is given. It serves over
TLS, knows the cluster that it runs in, reads a chart from a repository in the cluster, keeps its password over an upgrade,
and comes back by itself after its database was gone."""

import json
import re
import secrets
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64encode
from contextlib import contextmanager
from pathlib import Path

import surroundings
from devlib import until

NAME = "gantry-fleet"
DATABASE = f"{NAME}-postgresql"
KEYS, CERTIFICATE = "fleet-keys", "fleet-tls"


GIVEN = "given-postgres"


def common(chart) -> list[str]:
    return ["--set=fleet.enabled=true", f"--set=fleet.image={chart.images.name('fleet')}",
            f"--set=fleet.keys.existingSecret={KEYS}", f"--set=fleet.tls.existingSecret={CERTIFICATE}"]


def own_database(chart) -> list[str]:
    return [*common(chart), "--set=fleet.serviceMonitor.enabled=true",
            "--set=fleet.postgresql.enabled=true", "--set=fleet.postgresql.storage.size=1Gi",
            f"--set=fleet.postgresql.image={chart.images.name('test-postgres')}"]


def server(name: str, image: str, port: int, **container) -> list[dict]:
    """A pod and a Service of the same name."""
    labels = {"app": name}
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
         "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
             "name": "server", "image": image, "imagePullPolicy": "IfNotPresent",
             "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1}, **container}]}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
         "spec": {"selector": labels, "ports": [{"port": port}]}},
    ]


def run(chart, objects: list[dict]) -> None:
    for one in objects:
        chart.kubectl("apply", "--validate=false", "-n", chart.work, "-f", "-", stdin=json.dumps(one))
    chart.kubectl("wait", "--for=condition=Ready", "--timeout=90s", "-n", chart.work, f"pod/{objects[0]['metadata']['name']}")


def repository(chart, folder: Path) -> str:
    """This very chart, in a repository in the cluster, as Helm makes one; gives its address."""
    charts = folder / "charts"
    charts.mkdir()
    for arguments in (["package", chart.folder, "--destination", charts], ["repo", "index", charts]):
        subprocess.run([chart.helm, *arguments], check=True, capture_output=True)
    chart.kubectl("create", "configmap", "charts", "-n", chart.work, f"--from-file={charts}")
    pod, service = server("charts", chart.images.name("python"), 8000,
                          command=["python3", "-m", "http.server", "--directory", "/charts"],
                          volumeMounts=[{"name": "charts", "mountPath": "/charts"}])
    pod["spec"]["volumes"] = [{"name": "charts", "configMap": {"name": "charts"}}]
    run(chart, [pod, service])
    return f"http://charts.{chart.work}:8000"


def given_database(chart) -> list[str]:
    """A PostgreSQL that was there before, and a Secret with its address."""
    variables = {"POSTGRES_USER": "fleet", "POSTGRES_DB": "fleet", "POSTGRES_PASSWORD": "open", "PGDATA": "/tmp/data"}
    run(chart, server(GIVEN, chart.images.name("test-postgres"), 5432,
                      env=[{"name": name, "value": value} for name, value in variables.items()]))
    chart.kubectl("create", "secret", "generic", GIVEN, "-n", chart.namespace,
                  f"--from-literal=url=postgresql://fleet:open@{GIVEN}.{chart.work}:5432/fleet")
    return [*common(chart), f"--set=fleet.database.existingSecret={GIVEN}"]


def prepare(chart, folder: Path) -> ssl.SSLContext:
    """What the guide asks for beforehand: keys and a certificate. Gives what trusts that certificate."""
    def secret(name: str, *files: str) -> None:
        chart.kubectl("create", "secret", "generic", name, "-n", chart.namespace, *(f"--from-file={f}" for f in files))

    key = lambda: b64encode(secrets.token_bytes(32)).decode()  # noqa: E731
    for file in ("kubeconfig.key", "token.key"):
        (folder / file).write_text(key())
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", f"/CN={NAME}", "-addext", "subjectAltName=IP:127.0.0.1",
                    "-keyout", folder / "tls.key", "-out", folder / "tls.crt"], check=True, capture_output=True)
    secret(KEYS, *(str(folder / file) for file in ("kubeconfig.key", "token.key")))
    secret(CERTIFICATE, *(str(folder / file) for file in ("tls.crt", "tls.key")))
    return ssl.create_default_context(cafile=str(folder / "tls.crt"))


@contextmanager
def forwarded(chart):
    """The fleet server at an address of this machine."""
    command = [str(chart.kube), "port-forward", "-n", chart.namespace, f"service/{NAME}", ":443"]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            line = process.stdout.readline()
            port = re.search(r"127\.0\.0\.1:(\d+)", line)
            if not port:
                raise OSError(f"kubectl port-forward: {line}{process.stdout.read()}")
            yield f"https://127.0.0.1:{port[1]}"
        finally:
            process.terminate()


def serve(chart, need, upgrade) -> str:
    """`upgrade` brings the release to these values; `chart` is the one of tests/chart/run."""
    def ask(context: ssl.SSLContext, path: str, token: str = "", body: dict | None = None) -> tuple[int, dict]:
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {})}
        # Anew each time: it leads to one pod, which may be gone.
        with forwarded(chart) as address:
            request = urllib.request.Request(address + path, json.dumps(body).encode() if body else None, headers)
            try:
                with urllib.request.urlopen(request, context=context, timeout=20) as answer:
                    return answer.status, json.loads(answer.read())
            except urllib.error.HTTPError as refused:
                return refused.code, json.loads(refused.read() or b"{}")

    def health(context: ssl.SSLContext) -> bool:
        try:
            return ask(context, "/health")[0] == 200
        except OSError:
            return False

    def pods(component: str) -> dict[str, dict]:
        found = chart.get("pods", "-n", chart.namespace, "-l", f"app.kubernetes.io/component={component}")["items"]
        return {pod["metadata"]["uid"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}

    def password() -> str:
        return chart.get("secret", "-n", chart.namespace, DATABASE)["data"]["password"]

    def logs() -> str:
        return "".join(chart.kubectl("logs", "-n", chart.namespace, "-l", f"app.kubernetes.io/component={component}",
                                     "--prefix", "--tail=15", ok=False) for component in ("fleet", "fleet-postgresql"))

    with tempfile.TemporaryDirectory(prefix="gantry-fleet-") as folder:
        context = prepare(chart, Path(folder))
        begin = time.monotonic()
        upgrade(*own_database(chart))
        seconds = time.monotonic() - begin
        need(until(lambda: health(context), 30, 1), f"/health does not answer\n{logs()}")
        need("gantry_fleet_" in surroundings.scraped(chart, need, NAME), "no metrics of the fleet server")
        need(ask(context, "/api/v1/clusters")[0] == 401, "it answers without a token")
        services = chart.get("services", "-n", chart.namespace, "-l", "app.kubernetes.io/component=fleet")["items"]
        ports = {one["metadata"]["name"]: [port["name"] for port in one["spec"]["ports"]] for one in services}
        need(ports == {NAME: ["api"], f"{NAME}-admin": ["admin"]}, f"who publishes the API publishes more: {ports}")
        command = ["exec", "-n", chart.namespace, f"deployment/{NAME}", "--", "gantry", "fleet", "token",
                   "--jwt-secret-file=/etc/gantry/keys/token.key"]
        token = chart.kubectl(*command).split()[-1]
        kubeconfig = b64encode(chart.kubectl("config", "view", "--raw", "--minify", "--flatten").encode()).decode()
        status, answer = ask(context, "/api/v1/clusters", token,
                             {"name": "home", "environment": "Production", "kubeconfig": kubeconfig})
        need(status == 201 and answer["healthStatus"] == "Healthy", f"{status}: {answer}\n{logs()}")

        # Where its definitions are, only Helm can tell.
        registration = {
            "name": "gantry", "namespace": "gantry", "chartName": "gantry", "chartRepository": repository(chart, Path(folder)),
            "defaultValues": {"crds": {"mode": "templates"}}}

        def register() -> bool:
            nonlocal status, answer
            status, answer = ask(context, "/api/v1/operators", token, registration)
            # A node learns of a new Service when it comes to it, and not before its pod is ready.
            return status != 400 or answer["error"]["code"] != "CHART_REPOSITORY_UNREACHABLE"

        until(register, 30, 1)
        need(status == 201, f"the chart is not registered: {status} {answer}\n{logs()}")

        def definitions() -> set[str]:
            return {one["name"] for one in ask(context, "/api/v1/crds?limit=50", token)[1].get("crds", [])}

        expected = {file.stem for file in (chart.folder / "files/crds").glob("*.yaml")}
        need(until(lambda: definitions() == expected, 60, 1),
             f"of the chart's definitions it finds {definitions()}: {ask(context, '/api/v1/operators/gantry/versions', token)}")

        before, made = pods("fleet"), password()
        need(len(before) == 2, f"{len(before)} replicas")
        upgrade(*own_database(chart))
        need(password() == made and pods("fleet").keys() == before.keys(), "an upgrade without a change restarts it")

        gone = pods("fleet-postgresql")
        chart.kubectl("delete", "pod", "-n", chart.namespace, f"{DATABASE}-0")
        need(until(lambda: pods("fleet-postgresql").keys() - gone.keys() and health(context), 90, 1),
             f"it does not come back after its database did\n{logs()}")
        status, answer = ask(context, "/api/v1/clusters/home", token)
        need(status == 200, f"the cluster is forgotten: {status} {answer}")
        restarts = [one["restartCount"] for pod in pods("fleet").values() for one in pod["status"]["containerStatuses"]]
        need(restarts == [0, 0], f"restarts: {restarts}\n{logs()}")

        upgrade(*given_database(chart))
        need(until(lambda: health(context), 30, 1), f"/health does not answer with a given database\n{logs()}")
        status, answer = ask(context, "/api/v1/clusters", token)
        need(status == 200 and answer["total"] == 0, f"another database, but: {status} {answer}\n{logs()}")
        need(not pods("fleet-postgresql"), "a database of its own is still there")
    return f"up in {seconds:.0f} s, {len(expected)} definitions by Helm, its database came back and was replaced"
