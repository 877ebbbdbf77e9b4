"""A step of the chart's test: the fleet server with a PostgreSQL of its own. It serves over TLS, knows the cluster that it
runs in, keeps its password over an upgrade, and comes back by itself after its database was gone."""

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

from devlib import until

NAME = "gantry-fleet"
DATABASE = f"{NAME}-postgresql"
KEYS, CERTIFICATE = "fleet-keys", "fleet-tls"


def values(image: str) -> list[str]:
    return ["--set=fleet.enabled=true", "--set=fleet.postgresql.enabled=true",
            f"--set=fleet.postgresql.image={image}", "--set=fleet.postgresql.storage.size=1Gi",
            f"--set=fleet.keys.existingSecret={KEYS}", f"--set=fleet.tls.existingSecret={CERTIFICATE}"]


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


def serve(chart, need, image: str, upgrade) -> str:
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
        upgrade(*values(image))
        seconds = time.monotonic() - begin
        need(until(lambda: health(context), 30, 1), f"/health does not answer\n{logs()}")
        need(ask(context, "/api/v1/clusters")[0] == 401, "it answers without a token")
        command = ["exec", "-n", chart.namespace, f"deployment/{NAME}", "--", "gantry", "fleet", "token",
                   "--jwt-secret-file=/etc/gantry/keys/token.key"]
        token = chart.kubectl(*command).split()[-1]
        kubeconfig = b64encode(chart.kubectl("config", "view", "--raw", "--minify", "--flatten").encode()).decode()
        status, answer = ask(context, "/api/v1/clusters", token,
                             {"name": "home", "environment": "Production", "kubeconfig": kubeconfig})
        need(status == 201 and answer["healthStatus"] == "Healthy", f"{status}: {answer}\n{logs()}")

        before, made = pods("fleet"), password()
        need(len(before) == 2, f"{len(before)} replicas")
        upgrade(*values(image))
        need(password() == made and pods("fleet").keys() == before.keys(), "an upgrade without a change restarts it")

        gone = pods("fleet-postgresql")
        chart.kubectl("delete", "pod", "-n", chart.namespace, f"{DATABASE}-0")
        need(until(lambda: pods("fleet-postgresql").keys() - gone.keys() and health(context), 90, 1),
             f"it does not come back after its database did\n{logs()}")
        status, answer = ask(context, "/api/v1/clusters/home", token)
        need(status == 200, f"the cluster is forgotten: {status} {answer}")
        restarts = [one["restartCount"] for pod in pods("fleet").values() for one in pod["status"]["containerStatuses"]]
        need(restarts == [0, 0], f"restarts: {restarts}\n{logs()}")
    return f"up in {seconds:.0f} s, its database was replaced"
