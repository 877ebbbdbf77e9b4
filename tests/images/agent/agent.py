"""An agent for tests: it takes the environment that the operator gives to agents, and uses all of it.

  POST /v1/chat/completions     a loop of model and tools; peers are tools called delegate_to_NAME
  GET  /prove                   every variable, tried out: see prove.py
  GET  /.well-known/agent.json  the card; also /.well-known/agent and /.well-known/agent-card.json
  GET  /memory/events, /memory/sessions    unless AGENT_DEBUG_MEMORY_ENDPOINTS is false
  GET  /health, /ready          for probes

Nothing is written to disk.
"""

import json
import logging
import os
import time
import urllib.parse
import uuid

import webapi
from clients import Failed, Model, Peer, Tools
from memory import Memory
from prove import prove
from webapi import Refused, flag, words

log = logging.getLogger("agent")


def number(name: str, default: int) -> int:
    value = os.environ.get(name) or ""
    return int(value) if value.lstrip("-").isdigit() else default


class Agent:
    def __init__(self):
        get = os.environ.get
        self.name = get("AGENT_NAME") or "agent"
        self.description = get("AGENT_DESCRIPTION") or ""
        self.port = number("AGENT_PORT", 8000)
        self.memory = Memory(number("MEMORY_MAX_SESSIONS", 1000), number("MEMORY_MAX_SESSION_EVENTS", 500),
                             flag("MEMORY_ENABLED", True))
        self.context = number("MEMORY_CONTEXT_LIMIT", 6)
        self.steps = number("AGENTIC_LOOP_MAX_STEPS", 5)
        # 0 is no limit.
        self.seconds = number("TASK_MAX_RUNTIME_SECONDS", 300) or 86400
        self.calls = number("TASK_MAX_TOOL_CALLS", 50) or 1 << 30
        self.model = Model(get("MODEL_API_URL") or "", get("MODEL_NAME") or "", get("MODEL_API_KEY") or "not-needed",
                           min(self.seconds, 120))
        self.mock = json.loads(get("DEBUG_MOCK_RESPONSES") or "[]")

    def system(self) -> str:
        return "\n".join(filter(None, (os.environ.get("AGENT_SYSTEM_PROMPT"), os.environ.get("AGENT_INSTRUCTIONS"))))

    def servers(self) -> dict[str, str]:
        """MCP servers by name. The original keeps the name as it is in the variable's; shells and we also like
        capitals."""
        found = {}
        if flag("AGENTIC_LOOP_ENABLE_TOOLS", True):
            for name in words("MCP_SERVERS"):
                for spelled in (name, name.upper().replace("-", "_").replace(".", "_")):
                    if os.environ.get(f"MCP_SERVER_{spelled}_URL"):
                        found[name] = os.environ[f"MCP_SERVER_{spelled}_URL"]
        return found

    def peers(self) -> dict[str, str]:
        found = {}
        if flag("AGENTIC_LOOP_ENABLE_DELEGATION", True):
            for name in words("PEER_AGENTS"):
                spelled = name.upper().replace("-", "_").replace(".", "_").replace("/", "_")
                if os.environ.get(f"PEER_AGENT_{spelled}_CARD_URL"):
                    found[name] = os.environ[f"PEER_AGENT_{spelled}_CARD_URL"]
            for pair in words("AGENT_SUB_AGENTS"):
                name, _, url = pair.partition(":")
                found[name] = url
        return found

    def offered(self) -> tuple[list[dict], dict]:
        """Tools as the model is told of them, and what to do when it wants one."""
        told, doing = [], {}

        def offer(name: str, description: str, schema: dict, does) -> None:
            told.append({"type": "function",
                         "function": {"name": name, "description": description, "parameters": schema}})
            doing[name] = does

        for url in self.servers().values():
            try:
                with Tools(url, timeout=5) as server:
                    for tool in server.list():
                        offer(tool["name"], tool.get("description") or "",
                              tool.get("inputSchema") or {"type": "object"},
                              lambda arguments, url=url, name=tool["name"]: _use(url, name, arguments))
            except Failed as failed:
                log.warning("%s", failed)  # an agent with one tool less still answers
        for name, url in self.peers().items():
            schema = {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]}
            offer(f"delegate_to_{name}", f"Hand a task to agent {name}.", schema,
                  lambda arguments, name=name, url=url: Peer(name, url).ask(str(arguments.get("task", ""))))
        return told, doing

    def answer(self, messages: list[dict], session: str) -> str:
        """Model and tools in turn, until the model has nothing more to ask for or a limit is reached."""
        end = time.monotonic() + self.seconds
        question = webapi.last_text(messages)
        earlier = self.memory.context(session, self.context)
        self.memory.add(session, "user_message", question)
        talk = [{"role": "system", "content": self.system() or "You are a helpful assistant."}, *earlier,
                *({**one, "role": "user" if one.get("role") == "task-delegation" else one.get("role")}
                  for one in messages)]
        told, doing = self.offered()
        used = 0
        for _ in range(max(1, self.steps)):
            said = self.think(talk, told)
            wishes = said.get("tool_calls") or []
            if not wishes:
                self.memory.add(session, "agent_response", said.get("content") or "")
                return said.get("content") or ""
            talk.append({"role": "assistant", "content": said.get("content"), "tool_calls": wishes})
            for wish in wishes:
                used += 1
                if used > self.calls or time.monotonic() > end:
                    return "stopped: the limit of tool calls or of time is reached"
                result = self.use(doing, wish["function"])
                self.memory.add(session, "tool_result", result)
                talk.append({"role": "tool", "tool_call_id": wish.get("id"), "content": result})
        return "stopped: the limit of steps is reached"

    def think(self, talk: list[dict], told: list[dict]) -> dict:
        if self.mock:  # answers without a model, for tests of the original runtime too
            said = self.mock.pop(0)
            return {"content": said if isinstance(said, str) else json.dumps(said)}
        return self.model.ask(talk, told)

    def use(self, doing: dict, function: dict) -> str:
        try:
            return doing[function["name"]](json.loads(function.get("arguments") or "{}"))
        except KeyError:
            return f"no tool {function['name']}"
        except (Failed, ValueError) as error:
            return f"failed: {error}"

    def card(self, host: str) -> dict:
        skills = [{"id": tool["function"]["name"], "name": tool["function"]["name"],
                   "description": tool["function"]["description"], "tags": []} for tool in self.offered()[0]]
        # No `jsonrpc`: peers then use chat completions, which is what is here.
        return {"name": self.name, "description": self.description, "url": f"http://{host}", "version": "1",
                "protocolVersion": "0.3.0", "skills": skills, "supportedProtocols": [],
                "capabilities": {"streaming": True, "pushNotifications": False, "stateTransitionHistory": False},
                "defaultInputModes": ["application/json"], "defaultOutputModes": ["application/json"]}


def _use(url: str, name: str, arguments: dict) -> str:
    with Tools(url) as server:
        return server.use(name, arguments)


class Server(webapi.Handler):
    agent: Agent
    routes = {("GET", "/health"): "health", ("GET", "/ready"): "ready", ("GET", "/prove"): "proof",
              ("GET", "/.well-known/agent.json"): "card", ("GET", "/.well-known/agent"): "card",
              ("GET", "/.well-known/agent-card.json"): "card", ("POST", "/v1/chat/completions"): "chat",
              ("GET", "/memory/events"): "events", ("GET", "/memory/sessions"): "sessions"}

    def health(self) -> None:
        self.send_json({"status": "healthy", "name": self.agent.name})

    def ready(self) -> None:
        self.send_json({"status": "ready", "name": self.agent.name})

    def card(self) -> None:
        self.send_json(self.agent.card(self.headers.get("Host") or f"localhost:{self.agent.port}"))

    def proof(self) -> None:
        self.send_json(prove(self.agent))

    def chat(self) -> None:
        request = self.body()
        messages = request.get("messages")
        if not isinstance(messages, list) or not messages:
            raise Refused(400, {"detail": "messages are required"})
        session = self.headers.get("X-Session-ID") or request.get("session_id") or uuid.uuid4().hex
        model = request.get("model") or self.agent.name
        try:
            text = self.agent.answer(messages, session)
        except Failed as failed:
            raise Refused(502, webapi.openai_error(str(failed), "model_error")) from None
        if request.get("stream"):
            self.send_events(webapi.chunks(model, text, []))
        else:
            self.send_json({**webapi.completion(model, request, text, []), "id": session})

    def looked_into(self) -> None:
        if not flag("AGENT_DEBUG_MEMORY_ENDPOINTS"):
            raise Refused(404, {"detail": "AGENT_DEBUG_MEMORY_ENDPOINTS is not true"})

    def events(self) -> None:
        self.looked_into()
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        found = self.agent.memory.events(*asked.get("session_id", []))[-int(asked.get("limit", ["100"])[0]):]
        self.send_json({"agent": self.agent.name, "events": found, "total": len(found)})

    def sessions(self) -> None:
        self.looked_into()
        found = self.agent.memory.sessions()
        self.send_json({"agent": self.agent.name, "sessions": found, "total": len(found)})


if __name__ == "__main__":
    level = (os.environ.get("AGENT_LOG_LEVEL") or os.environ.get("LOG_LEVEL") or "INFO").upper()
    logging.basicConfig(level=getattr(logging, level, logging.INFO), format="%(levelname)s %(message)s")
    agent = Agent()
    webapi.serve(type("Server", (Server,), {"agent": agent}), "0.0.0.0", agent.port)
