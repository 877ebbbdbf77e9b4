"""What every script of dev/ shares: where things live, how to say them, and locks.

Standard library only (Python 3.11), so that the scripts run on a fresh machine.
"""

import fcntl
import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

DEV = Path(__file__).resolve().parent.parent
REPO = DEV.parent


class Failure(Exception):
    """An error the user can act on: printed as one message, without a traceback."""


def cache_dir() -> Path:
    """Things that are costly to make again (Kubernetes, tools); safe to delete at any time."""
    return _folder("GANTRY_CACHE", "XDG_CACHE_HOME", ".cache")


def state_dir() -> Path:
    """Things that describe what runs now (clusters)."""
    return _folder("GANTRY_STATE", "XDG_STATE_HOME", ".local/state")


def _folder(own: str, xdg: str, default: str) -> Path:
    if os.environ.get(own):
        return Path(os.environ[own]).absolute()
    base = os.environ.get(xdg) or Path.home() / default
    return Path(base).absolute() / "gantry"


def say(text: str) -> None:
    """Progress and notes go to stderr: stdout is kept for what a caller captures."""
    print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    say(f"WARNING: {text}")


@contextmanager
def locked(path: Path, waiting: str = "", remove: bool = False):
    """Hold an exclusive lock on a file. The kernel drops it when the holder dies, however it
    dies, so there are no stale locks. The holder's pid is written in it for the message only.
    With `remove`, the file is gone afterwards.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        # Python's descriptors are close-on-exec: a child holds the lock only if it is handed to it.
        with open(path, "a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waiting:
                    file.seek(0)
                    say(f"{waiting} (held by process {file.read().strip() or 'unknown'})")
                    waiting = ""
                fcntl.flock(file, fcntl.LOCK_EX)
            # Whoever removes a lock file holds the lock. So if the file of this name is another one
            # by now, the lock just taken is worth nothing: try again.
            try:
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    continue
            except FileNotFoundError:
                continue
            file.seek(0)
            file.truncate()
            file.write(str(os.getpid()))
            file.flush()
            try:
                yield file
            finally:
                if remove:
                    path.unlink(missing_ok=True)
            return


def until(what, timeout: float, every: float = 0.1):
    """Call `what` until it gives something true; give that back, or the last answer at timeout."""
    end = time.monotonic() + timeout
    while True:
        answer = what()
        if answer or time.monotonic() >= end:
            return answer
        time.sleep(every)


def start_of(pid: int) -> str:
    """When a process started, "" when it is not there (or only waits to be reaped). With the
    machine's boot, this names a process for good: ids are used again, start times are not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else f"{boot}/{fields[19]}"


def main(function) -> None:
    """Run a script's main function with the error messages a person wants to see."""
    # A polite kill unwinds like Ctrl-C does, so that children are ended and files put back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(function())
    except Failure as failure:
        say(f"error: {failure}")
        sys.exit(1)
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) went away: nothing more to say, and no traceback for it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
