"""Every variable that an operator gives to an agent, tried out rather than printed.

/prove answers
  {"agent": …, "ok": true when all checks are good and nothing is missing,
   "variables": {NAME: {"value": …, "ok": true|false|null, "outcome": "what was done with it"}},
   "missing": [required ones that are not set], "unused": [ok is null: set, but this agent has no use for it],
   "process": {"uid", "gid", "rootWritable", "tmpWritable"}}

Values of variables that look secret are not told.
"""

import os
import re
import socket
import tempfile
import urllib.parse
from pathlib import Path

import clients
import webapi
from clients import Failed, Peer, ToolFailed, Tools
from memory import Memory

REQUIRED = ("AGENT_NAME", "MODEL_API_URL", "MODEL_NAME")
OURS = re.compile(r"(AGENT|AGENTIC|MODEL|TOOL_CALL|MEMORY|MCP|PEER|AUTONOMOUS|TASK|LIMIT|OTEL|HARNESS)_|"
                  r"(LOG_LEVEL|DEBUG_MOCK_RESPONSES|GIT_TOKEN)$")
SECRET = re.compile(r"(KEY|SECRET|TOKEN|PASSWORD)$")
QUESTION = "are you there?"


def prove(agent) -> dict:
    found, trial = {}, Trial(agent)
    for name in sorted(set(os.environ) | set(REQUIRED)):
        if not OURS.match(name) or _made_by_kubernetes(name):
            continue
        value = os.environ.get(name)
        if value is None:
            found[name] = {"value": None, "ok": False, "outcome": "is not set"}
            continue
        check = trial.check(name)
        try:
            outcome = check(value) if check else None
            entry = {"ok": True if check else None, "outcome": outcome or "nothing: this agent has no use for it"}
        except (Failed, ValueError, KeyError, OSError) as error:
            entry = {"ok": False, "outcome": f"{type(error).__name__}: {error}"}
        found[name] = {"value": "…" if SECRET.search(name) else value, **entry}
    missing = [name for name in REQUIRED if not os.environ.get(name)]
    unused = [name for name, entry in found.items() if entry["ok"] is None]
    bad = [name for name, entry in found.items() if entry["ok"] is False]
    return {"agent": agent.name, "ok": not bad and not missing, "failed": bad, "missing": missing, "unused": unused,
            "variables": found, "process": _process()}


def _made_by_kubernetes(name: str) -> bool:
    """Services of the namespace come as variables too: AGENT_X_SERVICE_HOST for one called agent-x."""
    return bool(re.search(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP)(_\w+)?)$", name)) and (
        name != "AGENT_PORT" or os.environ[name].startswith("tcp://"))


def _process() -> dict:
    def writable(folder: str) -> bool:
        try:
            with tempfile.NamedTemporaryFile(dir=folder):
                return True
        except OSError:
            return False

    return {"uid": os.getuid(), "gid": os.getgid(), "rootWritable": any(map(writable, ("/", "/app", "/usr"))),
            "tmpWritable": writable("/tmp")}


def integer(least: int, most: int):
    def check(value: str) -> str:
        if not least <= int(value) <= most:
            raise Failed(f"{value} is not between {least} and {most}")
        return "is a number in range"

    return check


def one_of(*allowed: str):
    def check(value: str) -> str:
        if value.lower() not in allowed:
            raise Failed(f"'{value}' is not one of {', '.join(allowed)}")
        return "is a word that the runtime knows"

    return check


boolean = one_of("true", "false")


class Trial:
    """The checks: methods by the variable's name in small letters, or by pattern."""

    def __init__(self, agent):
        self.agent = agent
        most = 1 << 53
        self.plain = {
            "AGENTIC_LOOP_ENABLE_TOOLS": boolean, "AGENTIC_LOOP_ENABLE_DELEGATION": boolean,
            "AGENT_ACCESS_LOG": boolean, "AGENT_PORT": integer(1, 65535),
            "TOOL_CALL_MODE": one_of("auto", "native", "string"),
            "MEMORY_ENABLED": self.memory_enabled, "MEMORY_TYPE": one_of("local", "remote"),
            "MEMORY_MAX_READ_SCOPE": one_of("session", "agent", "user"), "MEMORY_TOOLS": one_of("all", "read", "write"),
            "MEMORY_FAILURE_MODE": one_of("soft", "strict"), "MEMORY_ROLLING_SUMMARY": boolean,
            "MEMORY_REQUIRE_PRINCIPAL": boolean, "MEMORY_REQUIRE_AGENT_IDENTITY": boolean,
            "MEMORY_SHORT_TERM_TOKEN_BUDGET": integer(0, most), "MEMORY_STORE_ENDPOINT": self.reachable,
            "AUTONOMOUS_INTERVAL_SECONDS": integer(0, 3600), "AUTONOMOUS_MAX_ITER_RUNTIME_SECONDS": integer(0, 86400),
            "TASK_MAX_ITERATIONS": integer(0, most), "OTEL_SDK_DISABLED": boolean,
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.reachable,
            "OTEL_EXPORTER_OTLP_PROTOCOL": one_of("grpc", "http/protobuf"),
            "LOG_LEVEL": one_of("trace", "debug", "info", "warning", "warn", "error", "critical"),
            "AGENT_LOG_LEVEL": one_of("trace", "debug", "info", "warning", "warn", "error", "critical"),
        }

    def check(self, name: str):
        own = getattr(self, name.lower(), None) or self.plain.get(name)
        if own:
            return own
        for pattern, method in ((r"MCP_SERVER_(.+)_URL$", self.tool_server), (r"PEER_AGENT_(.+)_CARD_URL$", self.peer)):
            wanted = re.match(pattern, name)
            if wanted:
                return lambda value: method(wanted[1], value)
        # Limits that this agent keeps no account of; they are to be numbers all the same.
        return integer(0, 1 << 53) if re.search(r"_(MAX|LIMIT)_|_(SECONDS|TOKENS|BUDGET)$", name) else None

    # Who it is.

    def agent_name(self, value: str) -> str:
        return self._in_card("name", value)

    def agent_description(self, value: str) -> str:
        return self._in_card("description", value)

    def _in_card(self, field: str, value: str) -> str:
        card = self._own("/.well-known/agent.json")
        if card[field] != value:
            raise Failed(f"the card says {card[field]!r}")
        return f"is the {field} on the agent's card"

    def agent_identity(self, value: str) -> str:
        parts = urllib.parse.urlsplit(value)
        if parts.scheme != "kaos" or parts.path.rpartition("/")[2] != self.agent.name:
            raise Failed(f"is not kaos://agent/NAMESPACE/{self.agent.name}")
        return "names this agent"

    def agent_debug_memory_endpoints(self, value: str) -> str:
        boolean(value)
        status, _, _ = clients.request("GET", f"http://127.0.0.1:{self.agent.port}/memory/events")
        if (status == 200) != (value.lower() == "true"):
            raise Failed(f"/memory/events answers {status}")
        return f"/memory/events answers {status}"

    # What it asks, and is told.

    def model_api_url(self, _value: str) -> str:
        said = self.agent.model.ask([{"role": "user", "content": QUESTION}]).get("content") or ""
        if not said:
            raise Failed("the model said nothing")
        return f"the model said: {said[:200]}"

    def model_name(self, value: str) -> str:
        """Only a model that says its name proves it; the stand-ins do."""
        said = self.agent.model.ask([{"role": "user", "content": QUESTION}]).get("content") or ""
        told = "and said its name" if value.rpartition("/")[2] in said else "but did not say its name"
        return f"asked for; the model answered, {told}"

    def model_api_key(self, _value: str) -> str:
        return "sent to the model as bearer token"

    def agent_instructions(self, value: str) -> str:
        return self._told(value)

    def agent_system_prompt(self, value: str) -> str:
        return self._told(value)

    def _told(self, value: str) -> str:
        if value not in self.agent.system():
            raise Failed("is not part of what the model is told")
        self.agent.model.ask([{"role": "system", "content": self.agent.system()},
                              {"role": "user", "content": QUESTION}])
        return "told to the model, which answered"

    def autonomous_goal(self, value: str) -> str:
        said = self.agent.answer([{"role": "user", "content": value}], "autonomous")
        return f"one round of work on it: {said[:200]}"

    def debug_mock_responses(self, _value: str) -> str:
        return "answers come from here"

    # What limits it.

    def agentic_loop_max_steps(self, value: str) -> str:
        integer(0, 100000)(value)
        if self.agent.steps != int(value):
            raise Failed(f"the loop takes {self.agent.steps} steps")
        return "is the loop's limit"

    def task_max_runtime_seconds(self, value: str) -> str:
        integer(0, 1 << 53)(value)
        return "is the limit of a task's time"

    def task_max_tool_calls(self, value: str) -> str:
        integer(0, 1 << 53)(value)
        return "is the limit of a task's tool calls"

    # What it remembers.

    def memory_enabled(self, value: str) -> str:
        boolean(value)
        kept = self.agent.memory.enabled
        if kept != (value.lower() == "true"):
            raise Failed(f"memory is {'on' if kept else 'off'}")
        return "memory is on" if kept else "memory is off"

    def memory_context_limit(self, value: str) -> str:
        memory = Memory(1, 10 * int(value))
        for count in range(int(value) + 2):
            memory.add("s", "user_message", str(count))
        if len(memory.context("s", self.agent.context)) != int(value):
            raise Failed(f"a question sees {self.agent.context} earlier messages")
        return "so many earlier messages are seen"

    def memory_max_sessions(self, value: str) -> str:
        memory = Memory(self.agent.memory.max_sessions, 1)
        for count in range(int(value) + 2):
            memory.add(str(count), "user_message", "x")
        if len(memory.sessions()) != int(value):
            raise Failed(f"{len(memory.sessions())} sessions are kept")
        return "so many sessions are kept"

    def memory_max_session_events(self, value: str) -> str:
        memory = Memory(1, self.agent.memory.max_events)
        for count in range(int(value) + 2):
            memory.add("s", "user_message", str(count))
        if len(memory.events("s")) != int(value):
            raise Failed(f"{len(memory.events('s'))} events are kept")
        return "so many events of a session are kept"

    # Whom it reaches.

    def mcp_servers(self, _value: str) -> str:
        return self._all_known("MCP_SERVERS", self.agent.servers(), "AGENTIC_LOOP_ENABLE_TOOLS")

    def peer_agents(self, _value: str) -> str:
        return self._all_known("PEER_AGENTS", self.agent.peers(), "AGENTIC_LOOP_ENABLE_DELEGATION")

    def _all_known(self, name: str, known: dict, switch: str) -> str:
        if os.environ.get(switch, "").lower() == "false":
            return f"not used: {switch} is false"
        lost = [one for one in webapi.words(name) if one not in known]
        if lost:
            raise Failed(f"no address for {', '.join(lost)}")
        return f"all {len(known)} have an address"

    def tool_server(self, _name: str, url: str) -> str:
        with Tools(url) as server:
            tools = server.list()
            if not tools:
                raise Failed("the server has no tools")
            tool = tools[0]
            try:
                said = server.use(tool["name"], clients.example(tool.get("inputSchema") or {"type": "object"}) or {})
            except ToolFailed as error:  # made-up arguments need not suit it: it answered
                said = str(error)
            return f"{len(tools)} tools at {server.url}; {tool['name']} said: {said[:200]}"

    def peer(self, name: str, url: str) -> str:
        peer = Peer(name, url)
        card = peer.card()
        if re.sub(r"[-./]", "_", card["name"]).upper() not in name.upper():
            raise Failed(f"the card is that of {card['name']}")
        return f"card of {card['name']}: {card['description'][:100]}; it said: {peer.ask(QUESTION)[:200]}"

    def agent_sub_agents(self, value: str) -> str:
        return "; ".join(self.peer(*pair.split(":", 1)) for pair in value.split(","))

    def reachable(self, value: str) -> str:
        """Something listens there; what it speaks is not tried."""
        parts = urllib.parse.urlsplit(value if "://" in value else f"//{value}")
        socket.create_connection((parts.hostname or "", parts.port or 80), timeout=5).close()
        return "something listens there"

    # The rest.

    def otel_service_name(self, value: str) -> str:
        if not value:
            raise Failed("is empty")
        return "is a name"

    def otel_resource_attributes(self, value: str) -> str:
        found = dict(pair.split("=", 1) for pair in value.split(","))
        if "service.namespace" not in found:
            raise Failed("has no service.namespace")
        return f"{len(found)} attributes"

    def otel_python_fastapi_excluded_urls(self, value: str) -> str:
        if not {"/health", "/ready"} <= set(value.split(",")):
            raise Failed("probes are traced")
        return "probes are not traced"

    def agent_auth_token_file(self, value: str) -> str:
        if not Path(value).read_text().strip():
            raise Failed("is empty")
        return "has a token"

    def harness_workspace(self, value: str) -> str:
        with tempfile.NamedTemporaryFile(dir=value):
            return "can be written to"

    def _own(self, path: str) -> dict:
        return clients.json_of("GET", f"http://127.0.0.1:{self.agent.port}{path}")
