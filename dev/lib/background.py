"""Programs that go on after the script that started them: knowing them again, and ending only them."""

import json
import os
import signal
import subprocess
from pathlib import Path

from devlib import Failure, start_of, state_dir, until


def home() -> Path:
    return state_dir() / "up"


class Background:
    """One program, by name. What is known of it is NAME.json, what it says is in NAME.log."""

    def __init__(self, name: str):
        self.name = name
        self.file = home() / f"{name}.json"
        self.log = home() / f"{name}.log"

    def about(self) -> dict:
        """What was noted when it was started, {} when it does not run."""
        try:
            noted = json.loads(self.file.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return noted if start_of(noted["pid"]) == noted["started"] else {}

    def start(self, command: list, key: str, environment: dict | None = None) -> bool:
        """Start it, unless it runs with the same key; then False. One with another key is ended first."""
        if self.about().get("key") == key:
            return False
        self.stop()
        home().mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.log, "ab") as log:
            child = subprocess.Popen(
                [str(word) for word in command], cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env={**os.environ, **(environment or {})})
        noted = {"pid": child.pid, "started": start_of(child.pid), "key": key}
        child.returncode = 0  # it is to outlive us: no warning about that from Popen
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(noted))
        part.rename(self.file)
        return True

    def stop(self) -> bool:
        """End it politely, then not; False when it did not run."""
        noted = self.about()
        if noted:
            for sign, wait in ((signal.SIGTERM, 20), (signal.SIGKILL, 10)):
                _signal(noted, sign)
                if until(lambda: not self.about(), wait, 0.05):
                    break
            else:
                raise Failure(f"process {noted['pid']} ({self.name}) does not end")
        self.file.unlink(missing_ok=True)
        return bool(noted)

    def tail(self, lines: int = 15) -> str:
        try:
            text = self.log.read_text(errors="replace").splitlines()[-lines:]
        except FileNotFoundError:
            return ""
        return "".join(f"    {line}\n" for line in text)


def _signal(noted: dict, sign: signal.Signals) -> None:
    try:
        handle = os.pidfd_open(noted["pid"])
    except ProcessLookupError:
        return
    try:
        # The handle stays with the process it was opened for, so nothing changes after this look.
        if start_of(noted["pid"]) == noted["started"]:
            signal.pidfd_send_signal(handle, sign)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
    try:
        os.waitpid(noted["pid"], os.WNOHANG)  # only when this process is its parent
    except ChildProcessError:
        pass
