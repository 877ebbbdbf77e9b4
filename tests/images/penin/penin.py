"""The four services of PENIN-Ω for tests: `penin meta|guard|sr|league --host H --port P`, as the original's program.

  GET  /health                 not of the league, which has /league/canary/ping instead, as the original
  GET  /metrics                by STUB_METRICS; 404 by default, as the original
  GET  /sr/score               of sr: the last score and its four axes, or an error before there is one
  POST /stub/score             of sr: {"sr_score": 0.9}: sets it
  POST /stub/metrics           {"penin_alpha": 0.5}: sets what /metrics tells
  POST /stub/effect            of sr: {"each": 0.1}: from now on the score follows the number of gates, by so much for each
  POST /stub/ask               of sr: sends its body to $GANTRY_CHANGES_URL with the token of its own pod
  GET  /prove                  tries what it was given: the other services, Redis with its password, the ledger
  GET  /env                    every variable

By itself it listens where the original does: on the pod's own address, and on ports nobody else knows of. Each start adds
a line to the ledger, $PENIN_DATA_DIR/worm_ledger.jsonl.

  STUB_METRICS    `readme` or `library`: which set of names /metrics has
  STUB_TOKEN      read from PENIN_METRICS_TOKEN: /metrics wants it as bearer token when it is set
  STUB_BROKEN     ends at once, with this text as its last words
"""

import argparse
import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlsplit

import webapi
from webapi import Refused

PORTS = {"guard": 8001, "meta": 8002, "sr": 8003, "league": 8004}
NAMES = {
    "readme": {"penin_alpha": 0.78, "penin_delta_linf": 0.05, "penin_caos_plus": 1.9, "penin_sr_score": 0.84},
    "library": {"penin_linf_score": 0.7, "penin_delta_linf": 0.05, "penin_caos_plus_score": 1.9,
                "penin_sr_omega_score": 0.84},
}
METRICS: dict[str, float] = dict(NAMES.get(os.environ.get("STUB_METRICS", ""), {}))
SCORE: dict[str, float] = {}
EFFECT: dict[str, float] = {}
TOKEN = Path("/var/run/secrets/gantry/token")
STARTED = time.time()


def ledger() -> Path:
    return Path(os.environ.get("PENIN_DATA_DIR", "/data"), "worm_ledger.jsonl")


def redis(url: str) -> str:
    """Sets and gets a key the way any client does."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port or 6379), timeout=5) as connection:
        stream = connection.makefile("rwb")

        def say(*words: str) -> str:
            stream.write(b"*%d\r\n" % len(words))
            for word in words:
                stream.write(b"$%d\r\n%b\r\n" % (len(word.encode()), word.encode()))
            stream.flush()
            line = stream.readline().decode().strip()
            if line.startswith("-"):
                raise RuntimeError(line)
            return stream.readline().decode().strip() if line.startswith("$") else line

        if parts.password:
            say("AUTH", unquote(parts.password))
        say("SET", "stub", "works")
        return say("GET", "stub")


def attempt(action) -> dict:
    try:
        return {"ok": True, "outcome": str(action())}
    except Exception as error:  # noqa: BLE001: whatever it is, the test wants to read it
        return {"ok": False, "outcome": f"{type(error).__name__}: {error}"}


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


def gates() -> int:
    """How many pods answer behind the gate's Service: each tells its name."""
    url = os.environ["PENIN_GUARD_URL"] + "/health"
    return len({json.loads(get(url))["pod"] for _ in range(30)})


def ask(body: dict) -> dict:
    """As a service without a Kubernetes client does."""
    request = urllib.request.Request(os.environ["GANTRY_CHANGES_URL"], json.dumps(body).encode(), {
        "Content-Type": "application/json", "Authorization": f"Bearer {TOKEN.read_text().strip()}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return {"status": answer.status, "answer": json.load(answer)}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "answer": error.read().decode()}


class Penin(webapi.Handler):
    service = ""
    routes = {("GET", "/health"): "health", ("GET", "/league/canary/ping"): "ping", ("GET", "/metrics"): "metrics",
              ("GET", "/sr/score"): "score", ("GET", "/prove"): "prove", ("GET", "/env"): "env",
              ("POST", "/stub/score"): "set_score", ("POST", "/stub/metrics"): "set_metrics",
              ("POST", "/stub/effect"): "set_effect", ("POST", "/stub/ask"): "ask"}
    quiet = ("/health", "/league/canary/ping", "/metrics")

    def only(self, *services: str) -> None:
        if self.service not in services:
            raise Refused(404, {"detail": "Not Found"})

    def health(self) -> None:
        self.only("meta", "guard", "sr")
        self.send_json({"ok": True, "pod": socket.gethostname(), "version": os.environ.get("STUB_VERSION")})

    def ping(self) -> None:
        self.only("league")
        self.send_json({"ok": True, "pod": socket.gethostname(), "version": os.environ.get("STUB_VERSION")})

    def metrics(self) -> None:
        token = os.environ.get("PENIN_METRICS_TOKEN")
        if token and self.headers.get("Authorization") != f"Bearer {token}":
            raise Refused(401, {"detail": "Unauthorized"})
        if not METRICS:
            raise Refused(404, {"detail": "Not Found"})
        lines = [f"# TYPE {name} gauge\n{name} {value}\n" for name, value in METRICS.items()]
        self.send_bytes("".join(lines).encode(), "text/plain; version=0.0.4")

    def set_metrics(self) -> None:
        METRICS.update(self.body())
        self.send_json(METRICS)

    def score(self) -> None:
        self.only("sr")
        if EFFECT:
            SCORE["sr_score"] = 0.5 + EFFECT["each"] * gates()
        self.send_json(SCORE or {"error": "No scores available", "sr_score": 0.0})

    def set_effect(self) -> None:
        self.only("sr")
        EFFECT.update(self.body())
        self.send_json(EFFECT)

    def ask(self) -> None:
        self.only("sr")
        self.send_json(ask(self.body()))

    def set_score(self) -> None:
        self.only("sr")
        axes = {"awareness": 0.9, "ethics_ok": True, "autocorrection": 0.8, "metacognition": 0.7}
        SCORE.update({**axes, **self.body(), "timestamp": time.time()})
        self.send_json(SCORE)

    def prove(self) -> None:
        """The others are asked for what their probes ask."""
        paths = {"META": "/health", "GUARD": "/health", "SR": "/health", "LEAGUE": "/league/canary/ping"}
        proofs = {name.lower(): attempt(lambda url=url, path=path: get(url + path))
                  for name, path in paths.items() if (url := os.environ.get(f"PENIN_{name}_URL"))}
        if url := os.environ.get("PENIN_REDIS_URL"):
            proofs["redis"] = attempt(lambda: redis(url))
        proofs["ledger"] = attempt(lambda: ledger().read_text())
        self.send_json({"ok": all(proof["ok"] for proof in proofs.values()), "proofs": proofs,
                        "started": STARTED, "pod": socket.gethostname(), "uid": os.getuid()})

    def env(self) -> None:
        self.send_json(dict(os.environ))


def main() -> None:
    if os.environ.get("STUB_BROKEN"):
        sys.exit(os.environ["STUB_BROKEN"])
    parser = argparse.ArgumentParser(prog="penin")
    parser.add_argument("service", choices=PORTS)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    Penin.service = options.service
    with ledger().open("a") as file:
        file.write(json.dumps({"service": options.service, "pod": socket.gethostname(), "time": STARTED}) + "\n")
    webapi.serve(Penin, options.host, options.port or PORTS[options.service])


main()
