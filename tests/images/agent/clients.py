"""How the agent reaches the world: a model by the OpenAI API, tools by MCP over streamable HTTP, peers by card."""

import http.client
import json
import urllib.parse

PROTOCOL = "2025-03-26"
CARDS = ("/.well-known/agent.json", "/.well-known/agent", "/.well-known/agent-card.json")


class Failed(Exception):
    """What went wrong, in words for a person."""


class ToolFailed(Failed):
    """The tool ran, and did not like what it was given."""


def request(method: str, url: str, body: dict | None = None, headers: dict | None = None, timeout: float = 30):
    """Status, headers in small letters, and text."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Failed(f"'{url}' is not an http address")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=timeout)
    try:
        connection.request(method, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
                           None if body is None else json.dumps(body),
                           {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        return answer.status, {key.lower(): value for key, value in answer.getheaders()}, text
    except OSError as error:
        raise Failed(f"{method} {url}: {error}") from None
    finally:
        connection.close()


def json_of(method: str, url: str, body: dict | None = None, headers: dict | None = None, timeout: float = 30) -> dict:
    status, _, text = request(method, url, body, headers, timeout)
    if status >= 400:
        raise Failed(f"{method} {url}: {status} {text[:300]}")
    try:
        return json.loads(text)
    except ValueError:
        raise Failed(f"{method} {url}: not JSON: {text[:100]}") from None


class Model:
    def __init__(self, url: str, name: str, key: str, timeout: float):
        base = url.rstrip("/")
        self.url = (base if base.endswith("/v1") else f"{base}/v1") + "/chat/completions"
        self.name, self.key, self.timeout = name, key, timeout

    def ask(self, messages: list[dict], tools: list[dict] | None = None) -> dict:
        """The message that the model answers, and the usage beside it."""
        body = {"model": self.name, "messages": messages, **({"tools": tools} if tools else {})}
        answer = json_of("POST", self.url, body, {"Authorization": f"Bearer {self.key}"}, self.timeout)
        try:
            return {**answer["choices"][0]["message"], "usage": answer.get("usage") or {}}
        except (KeyError, IndexError, TypeError):
            raise Failed(f"POST {self.url}: not a completion: {json.dumps(answer)[:200]}") from None


class Tools:
    """One MCP server, over one session (for servers that keep such a thing)."""

    def __init__(self, url: str, timeout: float = 30):
        base = url.rstrip("/")
        self.url = base if base.endswith("/mcp") else f"{base}/mcp"
        self.timeout = timeout
        self.headers = {"Accept": "application/json, text/event-stream"}
        self.count = 0

    def __enter__(self) -> "Tools":
        told = self.call("initialize", {"protocolVersion": PROTOCOL, "capabilities": {},
                                        "clientInfo": {"name": "gantry-test-agent", "version": "1"}})
        self.server = told.get("serverInfo", {}).get("name", "")
        self.headers["MCP-Protocol-Version"] = told.get("protocolVersion", PROTOCOL)
        self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def __exit__(self, *_) -> None:
        if "Mcp-Session-Id" in self.headers:
            try:
                request("DELETE", self.url, None, self.headers, self.timeout)
            except Failed:
                pass  # it ends by itself some time

    def list(self) -> list[dict]:
        found, cursor = [], None
        while True:
            told = self.call("tools/list", {"cursor": cursor} if cursor else {})
            found.extend(told.get("tools", []))
            cursor = told.get("nextCursor")
            if not cursor:
                return found

    def use(self, name: str, arguments: dict) -> str:
        told = self.call("tools/call", {"name": name, "arguments": arguments})
        text = " ".join(part.get("text", "") for part in told.get("content", []))
        if told.get("isError"):
            raise ToolFailed(f"tool {name}: {text}")
        return text

    def call(self, method: str, params: dict) -> dict:
        self.count += 1
        text, kind = self._post({"jsonrpc": "2.0", "id": self.count, "method": method, "params": params})
        if "text/event-stream" in kind:
            events = [line[5:] for line in text.splitlines() if line.startswith("data:")]
        else:
            events = [text]
        for event in events:
            try:
                told = json.loads(event)
            except ValueError:
                continue
            if isinstance(told, dict) and told.get("id") == self.count:
                if "error" in told:
                    raise Failed(f"{method}: {told['error'].get('message')}")
                return told.get("result") or {}
        raise Failed(f"{method} at {self.url}: no answer in {text[:200]!r}")

    def _post(self, message: dict) -> tuple[str, str]:
        status, headers, text = request("POST", self.url, message, self.headers, self.timeout)
        if status >= 400:
            raise Failed(f"POST {self.url}: {status} {text[:300]}")
        if "mcp-session-id" in headers:
            self.headers["Mcp-Session-Id"] = headers["mcp-session-id"]
        return text, headers.get("content-type", "")


class Peer:
    def __init__(self, name: str, url: str, timeout: float = 60):
        self.name, self.url, self.timeout = name, url.rstrip("/"), timeout

    def card(self) -> dict:
        """At whichever of the usual paths it is; the variable holds the address without one."""
        for path in CARDS:
            status, _, text = request("GET", self.url + path, timeout=self.timeout)
            if status == 200:
                return json.loads(text)
        raise Failed(f"{self.url} has no card at {', '.join(CARDS)}")

    def ask(self, task: str) -> str:
        answer = json_of("POST", f"{self.url}/v1/chat/completions", {
            "model": self.name, "messages": [{"role": "user", "content": task}]}, timeout=self.timeout)
        return answer["choices"][0]["message"]["content"] or ""


def example(schema: dict) -> object:
    """A value that fits a JSON schema, as plain as possible."""
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("anyOf"):
        return example(schema["anyOf"][0])
    kind = schema.get("type")
    if kind == "object":
        known = schema.get("properties", {})
        return {name: example(known.get(name, {})) for name in schema.get("required", [])}
    return {"integer": 1, "number": 1.5, "boolean": True, "array": [], "null": None}.get(kind, "example")
