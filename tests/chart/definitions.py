"""Definitions as objects of the chart (crds.mode=templates): a step of the chart's test, and the same on a current CRD server."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from devlib import DEV

NO_SERVER = 3  # what dev/crd-server says where it cannot be built
TEMPLATES = "--set=crds.mode=templates"


def old_enough(chart, names: list[str], folder: Path) -> Path:
    """A copy of the chart whose definitions this server takes: those that it has."""
    copy = folder / "gantry"
    shutil.copytree(chart.folder, copy)
    helpers = copy / "templates/_helpers.tpl"
    text = helpers.read_text()
    helpers.write_text(text.replace('"<1.25-0"', '"<1.20-0"'))
    for name in names:
        live = chart.get("crd", name)
        write(copy, {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": {"name": name}, "spec": live["spec"]})
    return copy


def write(copy: Path, definition: dict) -> None:
    (copy / "files/crds" / f"{definition['metadata']['name']}.yaml").write_text(json.dumps(definition))  # which is YAML too


def taken_over(chart, need, names: list[str], changed: str) -> str:
    """Nothing is installed, and the definitions of an earlier release are there; `chart` is the one of tests/chart/run."""
    with tempfile.TemporaryDirectory(prefix="gantry-chart-") as folder:
        copy = old_enough(chart, names, Path(folder))

        def helm(verb: str, *more) -> str:
            return chart.run_helm(verb, "gantry", str(copy), TEMPLATES, *chart.values(local=True), *more)

        refused = chart.run_helm("install", "gantry", str(copy), TEMPLATES, *chart.values(local=True), ok=False)
        need("cannot be imported" in refused or "ownership" in refused, f"it takes what is not its own: {refused}")
        helm("install", "--take-ownership")
        for name in names:
            notes = chart.get("crd", name)["metadata"]["annotations"]
            need(notes["meta.helm.sh/release-name"] == "gantry" and notes["helm.sh/resource-policy"] == "keep", f"{name}: {notes}")

        newer = json.loads((copy / "files/crds" / f"{changed}.yaml").read_text())
        column = newer["spec"]["versions"][0]["additionalPrinterColumns"].pop()["name"]
        write(copy, newer)
        force = []
        if chart.major == "helm4":
            # It applies on the server, where the Job was the manager of these fields.
            refused = chart.run_helm("upgrade", "gantry", str(copy), TEMPLATES, *chart.values(local=True), ok=False)
            need("conflict" in refused and "gantry-crds" in refused, f"no conflict: {refused}")
            force = ["--force-conflicts"]
        helm("upgrade", *force)
        columns = [one["name"] for one in chart.get("crd", changed)["spec"]["versions"][0]["additionalPrinterColumns"]]
        need(columns and column not in columns, f"the definition is not upgraded: {columns}")

        chart.run_helm("uninstall", "gantry", "--wait", "--timeout=60s")
        need(chart.existing_crds() == names, f"definitions after it: {chart.existing_crds()}")
        chart.same_object()
    return f"{len(names)} definitions taken over, upgraded and kept"


def on_current_server(tools: Path, chart: Path, gantry: Path, need, say) -> bool:
    """Both ways to bring definitions, in turn, on a server with validation rules; False when there is none here."""
    if subprocess.run([DEV / "crd-server", "build", "--check"], capture_output=True, check=False).returncode == NO_SERVER:
        say("SKIPPED definitions on a current CRD server: none can be built here")
        return False
    name = f"chart-{os.getpid()}"
    try:
        run(DEV / "crd-server", "up", name)
        environment = {**os.environ, "KUBECONFIG": run(DEV / "crd-server", "kubeconfig", name).strip()}

        def generations() -> dict[str, int]:
            items = json.loads(run(tools / "kubectl", "get", "crd", "-o", "json", env=environment))["items"]
            return {one["metadata"]["name"]: one["metadata"]["generation"] for one in items}

        before: dict[str, int] = {}
        for helm in ("helm3", "helm4"):
            words = run(tools / helm, "template", "gantry", chart, "--kube-version=1.36", TEMPLATES,
                        "--show-only=templates/crds/crds.yaml")
            for _ in range(2):
                run(tools / "kubectl", "apply", "--server-side", "-f", "-", stdin=words, env=environment)
                before = before or generations()
                run(gantry, "crds", "apply", env=environment)
        expected = {file.stem for file in (chart / "files/crds").glob("*.yaml")}
        need(set(before) == expected, f"definitions: {sorted(before)}")
        need(generations() == before, f"one way undoes what the other did: {before}, {generations()}")
    finally:
        subprocess.run([DEV / "crd-server", "down", name], capture_output=True, check=False)
    return True


def run(*words, stdin: str | None = None, env: dict | None = None) -> str:
    done = subprocess.run([str(word) for word in words], input=stdin, text=True, capture_output=True, check=False, env=env)
    if done.returncode:
        raise OSError(f"{Path(words[0]).name} {' '.join(map(str, words[1:3]))}: {(done.stdout + done.stderr).strip()[-2000:]}")
    return done.stdout
