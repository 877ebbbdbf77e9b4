"""A provider of models for tests: the OpenAI API with answers by rule.

  POST /v1/chat/completions   whole or streamed; says the last message back: "MODEL heard: TEXT".
                              `call NAME {…}` asks for a tool that the request offers, `fail 429` fails like that
  GET  /v1/models             STUB_MODELS
  GET  /stub/requests         what was asked lately, with the key that came along
  GET  /health                for probes

  STUB_MODELS         names by commas; others are refused as the real API does. `*` (default) is any.
  STUB_API_KEYS       keys by commas, one of which has to come as bearer token. Any is good when empty.
  STUB_DELAY_SECONDS  how long an answer takes
  PORT                8000
"""

import collections
import os
import time

import webapi
from webapi import Refused, openai_error

ASKED: collections.deque = collections.deque(maxlen=200)


class Stub(webapi.Handler):
    routes = {("POST", "/v1/chat/completions"): "chat", ("GET", "/v1/models"): "models",
              ("POST", "/chat/completions"): "chat", ("GET", "/models"): "models",
              ("GET", "/stub/requests"): "requests", ("GET", "/health"): "health"}

    def allowed(self) -> str:
        key = self.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        keys = webapi.words("STUB_API_KEYS")
        if keys and key not in keys:
            told = "Incorrect API key provided" if key else "You didn't provide an API key"
            raise Refused(401, openai_error(f"{told}.", "invalid_request_error", "invalid_api_key"))
        return key

    def chat(self) -> None:
        request = self.body()
        model = str(request.get("model") or "")
        try:
            key = self.allowed()
        except Refused:
            ASKED.append({"model": model, "refused": True, "key": self.headers.get("Authorization", "")})
            raise
        known = webapi.words("STUB_MODELS", "*")
        if "*" not in known and model not in known:
            raise Refused(404, openai_error(f"The model `{model}` does not exist", "invalid_request_error",
                                            "model_not_found"))
        ASKED.append({"model": model, "key": key, "stream": bool(request.get("stream")),
                      "messages": request.get("messages"),
                      "tools": [tool.get("function", {}).get("name") for tool in request.get("tools") or []]})
        webapi.refuse_on_wish(request)
        time.sleep(float(os.environ.get("STUB_DELAY_SECONDS") or 0))
        text, calls = webapi.think(model, request)
        if request.get("stream"):
            self.send_events(webapi.chunks(model, text, calls))
        else:
            self.send_json(webapi.completion(model, request, text, calls))

    def models(self) -> None:
        self.allowed()
        names = ["stub" if name == "*" else name for name in webapi.words("STUB_MODELS", "*")]
        self.send_json({"object": "list", "data": [
            {"id": name, "object": "model", "created": 0, "owned_by": "stub"} for name in names]})

    def requests(self) -> None:
        self.send_json({"requests": list(ASKED)})

    def health(self) -> None:
        self.send_json({"status": "healthy"})


if __name__ == "__main__":
    webapi.serve(Stub, "0.0.0.0", int(os.environ.get("PORT") or 8000))
