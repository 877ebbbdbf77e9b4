"""Tests of server.py: python3 -m unittest, where its requirements are installed.

The server runs as a process of its own, and is asked over HTTP as a client would ask it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

SERVER = Path(__file__).with_name("server.py")
GOOD = '''
from __future__ import annotations
import asyncio
import json as _json
from functools import lru_cache
from typing import Literal, Optional


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    The second is 2 unless given.
    """
    return a + b


async def greet(name: str, tone: Literal["kind", "dry"] = "kind") -> str:
    """Greet someone."""
    await asyncio.sleep(0)
    return f"{tone} hello, {name}"


def fail(text: Optional[str] = None):
    raise ValueError(text or "nothing given")


def slow(seconds: float) -> str:
    import time
    time.sleep(seconds)
    return "done"


def _hidden():
    pass


class NotATool:
    def method(self):
        pass
'''


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Running:
    """The server with this code, on a free port."""

    def __init__(self, code: str):
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER)], stderr=subprocess.PIPE, text=True,
            env={**os.environ, "MCP_TOOLS_STRING": code, "PORT": str(self.port), "LOG_LEVEL": "WARNING"})

    def __enter__(self):
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            try:
                return self if self.get("/health") else self
            except OSError:
                time.sleep(0.1)
        raise AssertionError(f"the server did not start: {self.process.communicate()[1]}")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=30)

    def get(self, path: str):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.load(answer)

    def ask(self, method: str, params: dict | None = None, host: str | None = None):
        """One request without a session or an `initialize` before it: any replica must answer it."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/mcp", json.dumps(body).encode(), method="POST",
            headers={"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
                     "MCP-Protocol-Version": "2025-06-18", **({"Host": host} if host else {})})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["result"]

    def call(self, tool: str, **arguments):
        return self.ask("tools/call", {"name": tool, "arguments": arguments})


class Serving(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Running(GOOD).__enter__()
        cls.addClassCleanup(cls.server.__exit__)

    def test_probes(self):
        self.assertEqual(self.server.get("/health"), {"status": "ok"})
        self.assertEqual(self.server.get("/ready")["tools"], ["add", "fail", "greet", "slow"])

    def test_initialize_of_a_client(self):
        answer = self.server.ask("initialize", {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}})
        self.assertEqual(answer["protocolVersion"], "2025-06-18")
        self.assertIn("tools", answer["capabilities"])

    def test_public_functions_are_the_tools(self):
        tools = {tool["name"]: tool for tool in self.server.ask("tools/list")["tools"]}
        self.assertEqual(sorted(tools), ["add", "fail", "greet", "slow"])
        add = tools["add"]
        self.assertEqual(add["description"], "Add two numbers.\n\nThe second is 2 unless given.")
        self.assertEqual(add["inputSchema"]["required"], ["a"])
        self.assertEqual(add["inputSchema"]["properties"]["a"]["type"], "integer")
        self.assertEqual(tools["greet"]["inputSchema"]["properties"]["tone"]["enum"], ["kind", "dry"])

    def test_calls(self):
        self.assertEqual(self.server.call("add", a=40)["content"][0]["text"], "42")
        self.assertEqual(self.server.call("greet", name="Ada")["content"][0]["text"], "kind hello, Ada")

    def test_an_exception_is_told_to_the_caller(self):
        answer = self.server.call("fail", text="no such city")
        self.assertTrue(answer["isError"])
        self.assertIn("ValueError: no such city", answer["content"][0]["text"])

    def test_a_wrong_argument_is_told_to_the_caller(self):
        answer = self.server.call("add", a="many")
        self.assertTrue(answer["isError"])
        self.assertIn("a", answer["content"][0]["text"])

    def test_the_name_of_a_service_is_accepted_as_host(self):
        tools = self.server.ask("tools/list", host="mcpserver-x.default.svc.cluster.local:8000")
        self.assertEqual(len(tools["tools"]), 4)

    def test_a_slow_tool_does_not_hold_up_the_probes(self):
        import threading
        caller = threading.Thread(target=self.server.call, args=("slow",), kwargs={"seconds": 1.5})
        caller.start()
        time.sleep(0.3)
        begin = time.monotonic()
        self.server.get("/health")
        self.assertLess(time.monotonic() - begin, 1)
        caller.join()

    def test_unknown_tool(self):
        try:
            answer = self.server.call("nope")
            self.assertTrue(answer["isError"])
        except KeyError:
            pass  # a JSON-RPC error, which is as good


class BadCode(unittest.TestCase):
    def lines(self, code: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, str(SERVER)], capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "MCP_TOOLS_STRING": code, "PORT": str(free_port())})
        self.assertEqual(done.returncode, 1, done.stderr)
        return done.stderr.splitlines()

    def test_one_line_that_says_where(self):
        for code, said in {
            "": "MCP_TOOLS_STRING is empty",
            "def a():\n    return 1\n\ndef b(:\n    pass\n": "MCP_TOOLS_STRING line 4: invalid syntax: def b(:",
            "def a():\n  x = 1\n   y = 2\n": "MCP_TOOLS_STRING line 3: unexpected indent",
            "import os\nimport no_such_thing\n": "MCP_TOOLS_STRING line 2: ModuleNotFoundError: No module named",
            "def f(x):\n    return x / 0\n\nf(1)\n": "MCP_TOOLS_STRING line 2: ZeroDivisionError: division by zero",
            "raise SystemExit(0)\n": "MCP_TOOLS_STRING line 1: SystemExit: 0",
            "from os import getcwd\n_x = 1\n": "MCP_TOOLS_STRING defines no public function",
            "class C: pass\n\ndef f(a: 'Unknown'): pass\n": "MCP_TOOLS_STRING line 3: function f cannot be a tool",
        }.items():
            with self.subTest(code=code):
                lines = self.lines(code)
                self.assertEqual(len(lines), 1, lines)
                self.assertTrue(lines[0].startswith(said), lines[0])


if __name__ == "__main__":
    unittest.main()
