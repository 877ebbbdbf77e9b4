"""Serve the functions of a piece of Python code as MCP tools.

The code comes in the environment variable MCP_TOOLS_STRING. Every public function that it defines at
the top level becomes a tool: the docstring is its description, the type hints are its schema. They are
served as streamable HTTP at /mcp, without sessions, so that any replica can answer any request; /health
and /ready are for probes.

Code that cannot be served ends the program with one line that says where it is wrong. That line is also
the pod's termination message.
"""

import asyncio
import functools
import inspect
import linecache
import logging
import os
import sys
import traceback
import types
from pathlib import Path

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from starlette.responses import JSONResponse

VARIABLE = "MCP_TOOLS_STRING"
MODULE = "mcp_tools"
TERMINATION_LOG = Path("/dev/termination-log")
log = logging.getLogger("mcp-python-string")


class BadCode(Exception):
    """The code cannot be served; the text is for the person who wrote it."""


def load(code: str) -> types.ModuleType:
    """Run the code as a module of its own."""
    if not code.strip():
        raise BadCode("is empty: it should hold Python functions")
    try:
        program = compile(code, VARIABLE, "exec", dont_inherit=True)
    except SyntaxError as error:
        shown = f": {error.text.strip()}" if error.text and error.text.strip() else ""
        raise BadCode(f"line {error.lineno}: {error.msg}{shown}") from None
    except ValueError as error:  # a zero byte
        raise BadCode(f"is not Python code: {error}") from None
    module = types.ModuleType(MODULE)
    # Type hints are looked up by module, and tracebacks show lines by file name.
    sys.modules[MODULE] = module
    linecache.cache[VARIABLE] = (len(code), None, code.splitlines(keepends=True), VARIABLE)
    try:
        exec(program, module.__dict__)  # noqa: S102: running it is what this image is for
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno for frame in reversed(frames) if frame.filename == VARIABLE), "?")
        text = " ".join(str(error).split())
        raise BadCode(f"line {line}: {type(error).__name__}{': ' if text else ''}{text}") from None
    return module


def functions(module: types.ModuleType) -> dict[str, types.FunctionType]:
    """The public functions that the code defines itself; what it imports is not meant to be a tool."""
    return {name: value for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == MODULE and not name.startswith("_")}


def telling(function):
    """The function, with whatever it raises told to the caller: a model can only do better next time
    if it reads what was wrong."""
    if inspect.iscoroutinefunction(function):
        @functools.wraps(function)
        async def call(*args, **kwargs):
            try:
                return await function(*args, **kwargs)
            except (ToolError, MCPError):
                raise
            except Exception as error:
                log.exception("tool %s failed", function.__name__)
                raise ToolError(_words(error)) from error
    else:
        @functools.wraps(function)
        def call(*args, **kwargs):
            try:
                return function(*args, **kwargs)
            except (ToolError, MCPError):
                raise
            except Exception as error:
                log.exception("tool %s failed", function.__name__)
                raise ToolError(_words(error)) from error
    return call


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def build(code: str, name: str = "python-string") -> MCPServer:
    """The server with a tool for every function of the code."""
    found = functions(load(code))
    if not found:
        raise BadCode("defines no public function at the top level: there is nothing to serve")
    server = MCPServer(name, log_level=_log_level())
    for title, function in found.items():
        try:
            server.add_tool(telling(function), name=title, description=inspect.getdoc(function))
        except Exception as error:
            line = function.__code__.co_firstlineno
            text = " ".join(str(error).split())[:500]
            raise BadCode(f"line {line}: function {title} cannot be a tool: {text}") from None

    @server.custom_route("/health", methods=["GET"])
    async def health(_request):
        return JSONResponse({"status": "ok"})

    @server.custom_route("/ready", methods=["GET"])
    async def ready(_request):
        return JSONResponse({"status": "ready", "tools": sorted(found)})

    return server


def _log_level() -> str:
    level = os.environ.get("LOG_LEVEL", "INFO").upper()
    level = {"TRACE": "DEBUG", "WARN": "WARNING"}.get(level, level)
    return level if level in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL") else "INFO"


def main() -> int:
    try:
        server = build(os.environ.get(VARIABLE, ""), os.environ.get("MCP_SERVER_NAME", "python-string"))
    except BadCode as problem:
        line = f"{VARIABLE} {problem}"
        print(line, file=sys.stderr, flush=True)
        try:
            if TERMINATION_LOG.exists():
                TERMINATION_LOG.write_text(line + "\n")
        except OSError:
            pass  # the line is in the log as well
        return 1
    app = server.streamable_http_app(stateless_http=True, json_response=True, host="0.0.0.0")
    settings = uvicorn.Config(
        app, host="0.0.0.0", port=int(os.environ.get("PORT", "8000")), log_level=_log_level().lower(),
        # Probes come every few seconds, and say nothing.
        access_log=_log_level() == "DEBUG", timeout_graceful_shutdown=20)
    asyncio.run(uvicorn.Server(settings).serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
