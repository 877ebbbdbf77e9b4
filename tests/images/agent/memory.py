"""What the agent remembers: sessions of events, within limits, in memory only."""

import collections
import threading
import time

ROLES = {"user_message": "user", "agent_response": "assistant"}


class Memory:
    def __init__(self, max_sessions: int, max_events: int, enabled: bool = True):
        self.max_sessions, self.max_events, self.enabled = max_sessions, max_events, enabled
        self.kept: collections.OrderedDict[str, collections.deque] = collections.OrderedDict()
        self.lock = threading.Lock()

    def add(self, session: str, kind: str, text: str) -> None:
        if not self.enabled:
            return
        with self.lock:
            events = self.kept.setdefault(session, collections.deque(maxlen=self.max_events))
            events.append({"event_type": kind, "content": text, "session_id": session, "timestamp": time.time()})
            self.kept.move_to_end(session)
            while len(self.kept) > self.max_sessions:  # the one that was quiet for longest
                self.kept.popitem(last=False)

    def events(self, session: str | None = None) -> list[dict]:
        with self.lock:
            chosen = [self.kept.get(session, ())] if session else self.kept.values()
            return [event for events in chosen for event in events]

    def sessions(self) -> list[str]:
        with self.lock:
            return list(self.kept)

    def context(self, session: str, limit: int) -> list[dict]:
        """The last messages of a session, as a model is told of them."""
        said = [{"role": ROLES[event["event_type"]], "content": event["content"]}
                for event in self.events(session) if event["event_type"] in ROLES]
        return said[-limit:] if limit > 0 else []
