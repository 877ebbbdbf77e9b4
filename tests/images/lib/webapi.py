"""What the test images share: a small JSON server, and a model that answers by rule, in the words of the OpenAI API.

Nothing but Python's standard library, so that an image is a Python and two files.
"""

import json
import os
import re
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# A question of this form makes the "model" ask for that tool, as a real one would when it saw fit.
CALL = re.compile(r"\s*call\s+([\w.-]+)\s*(\{.*\})?\s*$", re.S)
FAIL = re.compile(r"\s*fail\s+([45]\d\d)\b")


class Refused(Exception):
    """An answer other than 200, with a body of the caller's choice."""

    def __init__(self, status: int, body: dict, headers: dict | None = None):
        super().__init__(f"{status} {body}")
        self.status, self.body, self.headers = status, body, headers or {}


class Handler(BaseHTTPRequestHandler):
    """Routes are methods of subclasses: `routes` maps ("GET", "/path") to a method's name; a path may end in "/*"."""

    protocol_version = "HTTP/1.1"
    routes: dict[tuple[str, str], str] = {}
    quiet = ("/health", "/ready", "/")

    def _answer(self) -> None:
        path = self.path.split("?")[0]
        method = "GET" if self.command == "HEAD" else self.command
        # Read in any case: what is left of a body would be taken for the next request.
        self.raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        name = self.routes.get((method, path)) or next(
            (name for (verb, route), name in self.routes.items()
             if verb == method and route.endswith("/*") and path.startswith(route[:-1])), None)
        try:
            if not name:
                raise Refused(404, {"error": f"no such page: {method} {path}"})
            getattr(self, name)()
        except Refused as refused:
            self.send_json(refused.body, refused.status, refused.headers)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except Exception as error:  # noqa: BLE001: a test reads it better here than in a log
            self.log_error("%s: %s", type(error).__name__, error)
            self.send_json({"error": f"{type(error).__name__}: {error}"}, 500)

    do_GET = do_HEAD = do_POST = do_DELETE = _answer

    def body(self) -> dict:
        try:
            found = json.loads(self.raw or b"{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Refused(400, {"error": "the body is not a JSON object"})
        return found

    def send_json(self, value, status: int = 200, headers: dict | None = None) -> None:
        self.send_bytes(json.dumps(value).encode(), "application/json", status, headers)

    def send_bytes(self, content: bytes, kind: str, status: int = 200, headers: dict | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": kind, "Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_stream(self, kind: str, pieces) -> None:
        """Each piece (bytes) as it comes. The status is 200 whatever the pieces will say."""
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def send_events(self, values) -> None:
        """A stream as the OpenAI API has it."""
        def lines():
            for value in values:
                yield b"data: " + json.dumps(value).encode() + b"\n\n"
            yield b"data: [DONE]\n\n"

        self.send_stream("text/event-stream", lines())

    def log_request(self, code="-", size="-") -> None:
        if self.path.split("?")[0] not in self.quiet:  # probes say nothing worth reading
            super().log_request(code, size)


def serve(handler: type, host: str, port: int) -> None:
    """Until SIGTERM. Process 1 of a container has no default action for it, so it has to be said."""
    server = ThreadingHTTPServer((host, port), handler)
    server.daemon_threads = True
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"listening on {host}:{port}", file=sys.stderr, flush=True)
    server.serve_forever()
    server.server_close()


def last_text(messages: list[dict]) -> str:
    """What the last message says; content may also come in parts."""
    content = messages[-1].get("content") if messages else ""
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content or ""


def think(model: str, request: dict) -> tuple[str, list[dict]]:
    """What the model says, or the tool calls that it wants. The same question always gets the same answer:
    `call NAME {"argument": 1}` calls a tool that the request offers, anything else is said back."""
    messages = request.get("messages") or []
    text = last_text(messages)
    wish = CALL.match(text)
    offered = [tool.get("function", {}).get("name") for tool in request.get("tools") or []]
    if wish and wish[1] in offered and messages[-1].get("role") == "user":
        function = {"name": wish[1], "arguments": wish[2] or "{}"}
        return "", [{"id": f"call_{wish[1]}", "type": "function", "function": function}]
    return f"{model} heard: {text}", []


def refuse_on_wish(request: dict) -> None:
    """`fail 429` and the like: the error that the question asks for."""
    wish = FAIL.match(last_text(request.get("messages") or []))
    if wish:
        raise Refused(int(wish[1]), openai_error(f"failed with {wish[1]}, as asked", "stub_error"),
                      {"Retry-After": "1"} if wish[1] in ("429", "503") else None)


def openai_error(message: str, kind: str, code: str | None = None) -> dict:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def completion(model: str, request: dict, text: str, calls: list[dict]) -> dict:
    """A whole answer of /v1/chat/completions."""
    message = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = calls
    asked = sum(len(last_text([one]).split()) for one in request.get("messages") or [])
    said = len(text.split()) + len(calls)
    return {"id": "chatcmpl-stub", "object": "chat.completion", "created": int(time.time()), "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
            "usage": {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}}


def chunks(model: str, text: str, calls: list[dict]):
    """The same in pieces: word by word."""
    def chunk(delta: dict, finish: str | None = None) -> dict:
        return {"id": "chatcmpl-stub", "object": "chat.completion.chunk", "created": int(time.time()),
                "model": model, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for word in re.findall(r"\S+\s*", text):
        yield chunk({"content": word})
    for index, call in enumerate(calls):
        yield chunk({"tool_calls": [{"index": index, **call}]})
    yield chunk({}, "tool_calls" if calls else "stop")


def flag(name: str, default: bool = False) -> bool:
    return (os.environ.get(name) or str(default)).strip().lower() in ("1", "true", "yes", "on")


def words(name: str, default: str = "") -> list[str]:
    """A list by commas; brackets around it are allowed, as the original runtime does."""
    return [word.strip() for word in (os.environ.get(name) or default).strip("[] ").split(",") if word.strip()]
