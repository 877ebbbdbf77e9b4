"""The stand-ins themselves, as programs on this machine: python3 -B -m unittest discover -s tests/images"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
OLLAMA = HERE / "ollama-stub/ollama.py"


def environment(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(HERE / "lib"), "PYTHONDONTWRITEBYTECODE": "1", **more}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ask(url: str, body: dict | None = None, method: str | None = None, **headers: str) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def chat(url: str, text: str, model: str = "m", **headers: str) -> tuple[int, dict]:
    status, said = ask(f"{url}/v1/chat/completions",
                       {"model": model, "messages": [{"role": "user", "content": text}]}, **headers)
    return status, json.loads(said)


def words(answer: dict) -> str:
    return answer["choices"][0]["message"]["content"]


class Programs(unittest.TestCase):
    def start(self, program: Path, *arguments: str, port: int, probe: str = "/health", **env: str) -> str:
        process = subprocess.Popen([sys.executable, program, *arguments], env=environment(**env),
                                   stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 30
        while True:
            try:
                ask(url + probe)
                return url
            except OSError:
                self.assertLess(time.monotonic(), end, f"{program} does not answer")
                self.assertIsNone(process.poll(), f"{program} ended")
                time.sleep(0.05)

    def openai(self, **env: str) -> str:
        port = free_port()
        return self.start(HERE / "openai-stub/server.py", port=port, PORT=str(port), **env)


class Provider(Programs):
    def test_answers_by_rule(self):
        url = self.openai(STUB_MODELS="a,b", STUB_API_KEYS="good,better")
        good = {"Authorization": "Bearer better"}
        self.assertEqual(words(chat(url, "hi there", "a", **good)[1]), "a heard: hi there")
        self.assertEqual(chat(url, "hi", "a", Authorization="Bearer bad")[0], 401)
        self.assertEqual(chat(url, "hi", "a")[0], 401)
        self.assertEqual(chat(url, "hi", "c", **good)[0], 404)
        self.assertEqual(chat(url, "fail 503", "a", **good)[0], 503)
        listed = json.loads(ask(f"{url}/v1/models", **good)[1])
        self.assertEqual([one["id"] for one in listed["data"]], ["a", "b"])
        asked = json.loads(ask(f"{url}/stub/requests")[1])["requests"]
        self.assertEqual(asked[0]["key"], "better")

    def test_streams_and_calls_tools(self):
        url = self.openai()
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "one two"}]}
        events = [line[6:] for line in ask(f"{url}/v1/chat/completions", body)[1].splitlines() if line]
        self.assertEqual(events[-1], "[DONE]")
        said = "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1])
        self.assertEqual(said, "m heard: one two")
        tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
        body = {"model": "m", "tools": tools, "messages": [{"role": "user", "content": 'call add {"a": 1}'}]}
        answer = json.loads(ask(f"{url}/v1/chat/completions", body)[1])["choices"][0]
        self.assertEqual(answer["finish_reason"], "tool_calls")
        self.assertEqual(answer["message"]["tool_calls"][0]["function"], {"name": "add", "arguments": '{"a": 1}'})


class Ollama(Programs):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = Path(folder.name)
        self.port = free_port()
        self.env = {"HOME": str(self.home), "OLLAMA_HOST": f"127.0.0.1:{self.port}"}

    def serve(self, **env: str) -> str:
        return self.start(OLLAMA, "serve", port=self.port, probe="/", **self.env, **env)

    def run_ollama(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, OLLAMA, *arguments], env=environment(**self.env), text=True, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        return done.returncode, done.stdout

    def test_a_model_is_pulled_listed_asked_and_removed(self):
        url = self.serve()
        self.assertEqual(ask(f"{url}/")[1], "Ollama is running")
        code, said = self.run_ollama("pull", "smollm2:135m")
        self.assertEqual((code, said.splitlines()[-1]), (0, "success"))
        models = self.home / ".ollama/models"
        manifest = json.loads((models / "manifests/registry.ollama.ai/library/smollm2/135m").read_text())
        for layer in [*manifest["layers"], manifest["config"]]:
            blob = models / "blobs" / layer["digest"].replace(":", "-")
            self.assertEqual(blob.stat().st_size, layer["size"])
        self.assertIn("smollm2:135m", self.run_ollama("list")[1])
        self.assertEqual(self.run_ollama("run", "smollm2:135m", "hello")[1].strip(), "smollm2:135m heard: hello")
        self.assertEqual(words(chat(url, "hi", "smollm2:135m")[1]), "smollm2:135m heard: hi")
        loaded = json.loads(ask(f"{url}/api/generate", {"model": "smollm2:135m"})[1])
        self.assertEqual((loaded["done"], loaded["done_reason"]), (True, "load"))
        self.assertEqual(ask(f"{url}/api/delete", {"model": "smollm2:135m"}, "DELETE")[0], 200)
        self.assertEqual(ask(f"{url}/api/show", {"model": "smollm2:135m"})[0], 404)
        self.assertEqual(list((models / "blobs").iterdir()), [])

    def test_a_failed_pull_is_told_within_the_stream(self):
        url = self.serve()
        status, said = ask(f"{url}/api/pull", {"model": "is-missing"})
        self.assertEqual(status, 200)
        self.assertEqual(json.loads(said.splitlines()[-1]), {"error": "pull model manifest: file does not exist"})
        self.assertEqual(self.run_ollama("pull", "is-missing")[0], 1)
        self.assertEqual(chat(url, "hi", "nobody")[0], 404)

    def test_a_pull_takes_its_time_and_tells_how_far_it_is(self):
        url = self.serve(STUB_PULL_SECONDS="1")
        begin = time.monotonic()
        lines = [json.loads(line) for line in ask(f"{url}/api/pull", {"model": "a/b"})[1].splitlines()]
        self.assertGreater(time.monotonic() - begin, 0.8)
        steps = [line["completed"] for line in lines if line.get("digest") == lines[1]["digest"]]
        self.assertEqual(steps, sorted(steps))
        self.assertGreater(len(steps), 5)

    def test_without_a_registry_and_without_a_server(self):
        code, said = self.run_ollama("pull", "x")
        self.assertEqual(code, 1)
        self.assertIn("could not connect", said)
        self.serve(STUB_OFFLINE="true")
        self.assertIn("no such host", self.run_ollama("pull", "x")[1])

    def test_it_does_not_run_without_a_home(self):
        self.env["HOME"] = "/proc/none"
        code, said = self.run_ollama("serve")
        self.assertEqual(code, 1)
        self.assertIn("could not create directory", said)


class Agents(Programs):
    def agent(self, name: str, **env: str) -> str:
        port = free_port()
        return self.start(HERE / "agent/agent.py", port=port, AGENT_PORT=str(port), AGENT_NAME=name,
                          MODEL_NAME="gpt-x", **env)

    def test_variables_are_proven_by_use(self):
        model = self.openai()
        peer = self.agent("peer-one", MODEL_API_URL=model, AGENT_DESCRIPTION="One.")
        lead = self.agent("lead", MODEL_API_URL=model, AGENT_DESCRIPTION="Leads.", AGENT_INSTRUCTIONS="Be short.",
                          PEER_AGENTS="peer-one", PEER_AGENT_PEER_ONE_CARD_URL=peer, AGENTIC_LOOP_MAX_STEPS="3",
                          MEMORY_CONTEXT_LIMIT="4", MEMORY_MAX_SESSIONS="10", AGENT_DEBUG_MEMORY_ENDPOINTS="true")
        proof = json.loads(ask(f"{lead}/prove")[1])
        self.assertTrue(proof["ok"], proof)
        self.assertEqual(proof["unused"], [])
        self.assertIn("card of peer-one: One.", proof["variables"]["PEER_AGENT_PEER_ONE_CARD_URL"]["outcome"])
        said = words(chat(lead, 'call delegate_to_peer-one {"task": "say it"}')[1])
        self.assertEqual(said, "gpt-x heard: gpt-x heard: say it")
        self.assertEqual(json.loads(ask(f"{lead}/memory/sessions")[1])["total"], 1)
        self.assertEqual(ask(f"{peer}/memory/sessions")[0], 404)

    def test_what_is_wrong_is_named(self):
        nowhere = f"http://127.0.0.1:{free_port()}"
        lead = self.agent("lead", MODEL_API_URL=nowhere, PEER_AGENTS="b", TOOL_CALL_MODE="guess",
                          MCP_SERVERS="t", MCP_SERVER_T_URL=nowhere)
        proof = json.loads(ask(f"{lead}/prove")[1])
        self.assertEqual(proof["failed"], ["MCP_SERVER_T_URL", "MODEL_API_URL", "MODEL_NAME", "PEER_AGENTS",
                                           "TOOL_CALL_MODE"])
        self.assertEqual(chat(lead, "hi")[0], 502)


class Penin(Programs):
    def penin(self, service: str, probe: str = "/health", **env: str) -> str:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.ledger = Path(folder.name, "worm_ledger.jsonl")
        port = free_port()
        return self.start(HERE / "penin/penin.py", service, "--host", "127.0.0.1", "--port", str(port), port=port,
                          probe=probe, PENIN_DATA_DIR=folder.name, **env)

    def test_is_as_limited_as_the_original(self):
        league = self.penin("league", "/league/canary/ping")
        self.assertEqual(ask(f"{league}/health")[0], 404)
        self.assertEqual(ask(f"{league}/metrics")[0], 404)
        self.assertEqual(json.loads(self.ledger.read_text())["service"], "league")
        sr = self.penin("sr")
        self.assertIn("error", json.loads(ask(f"{sr}/sr/score")[1]))
        ask(f"{sr}/stub/score", {"sr_score": 0.5})
        self.assertEqual(json.loads(ask(f"{sr}/sr/score")[1])["sr_score"], 0.5)

    def test_serves_metrics_when_asked_to_and_proves_its_neighbours(self):
        guard = self.penin("guard", STUB_METRICS="library", PENIN_METRICS_TOKEN="t")
        self.assertEqual(ask(f"{guard}/metrics")[0], 401)
        self.assertIn("\npenin_sr_omega_score 0.84\n", ask(f"{guard}/metrics", Authorization="Bearer t")[1])
        nowhere = f"http://127.0.0.1:{free_port()}"
        proof = json.loads(ask(f"{self.penin('meta', PENIN_GUARD_URL=guard, PENIN_SR_URL=nowhere)}/prove")[1])
        self.assertFalse(proof["ok"])
        self.assertEqual([name for name, one in proof["proofs"].items() if one["ok"]], ["guard", "ledger"])


if __name__ == "__main__":
    unittest.main()
