"""Running stages one after the other: which, in what order, with a log and a time for each, and one verdict."""

import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from devlib import REPO, Failure

# Cargo's line for each crate: counted, not shown.
CRATE = re.compile(r"\s+(Compiling|Checking) ")
DULL = re.compile(r"\s+(Compiling|Checking|Downloaded|Downloading|Updating|Locking|Adding|Fresh|Dirty|Blocking) ")
QUIET_SECONDS = 20  # without a line for this long, one says that it goes on


class Skip(Exception):
    """The stage cannot be run on this machine, and that is no fault; the text says why."""


@dataclass(frozen=True)
class Stage:
    name: str
    text: str
    work: Callable[["Work"], None]
    needs: tuple[str, ...] = ()
    # As `needs`, but their failure does not stop this one.
    after: tuple[str, ...] = ()
    # Part of a run that names no stages.
    usual: bool = True
    # Clusters and images need root, and Debian's packages.
    root: bool = False


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


class Work:
    """What a running stage uses: commands whose output is shown and logged."""

    def __init__(self, name: str, log: Path, environment: dict, quiet: bool = False):
        self.name, self.environment, self.quiet = name, environment, quiet
        self.begin = self.shown = time.monotonic()
        self.log = open(log, "w", encoding="utf-8")

    def say(self, text: str) -> None:
        if not self.quiet:
            self.shown = time.monotonic()
            print(text, flush=True)
        self.log.write(f"{text}\n")
        self.log.flush()

    def run(self, *command, codes: tuple[int, ...] = (0,), **environment: str) -> int:
        """Run a command and show what it says; a code that is not expected ends the stage."""
        words = [str(word) for word in command]
        self.log.write(f"$ {' '.join(words)}\n")
        child = subprocess.Popen(
            words, cwd=REPO, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", env={**os.environ, **self.environment, **environment},
            # A group of its own, so that it can be ended with all that it started.
            start_new_session=True)
        try:
            self._follow(child)
        finally:
            end(child)
        if child.returncode not in codes:
            shown = [word.removeprefix(f"{REPO}/") for word in words[:4]]
            raise Failure(f"{' '.join(shown)}{' …' if len(words) > 4 else ''} ended with code {child.returncode}")
        return child.returncode

    def all(self, *commands: list) -> None:
        """Run every command, and fail after the last if any failed."""
        failures = []
        for command in commands:
            try:
                self.run(*command)
            except Failure as failure:
                self.say(f"FAILED: {failure}")
                failures.append(str(failure))
        if failures:
            raise Failure("; ".join(failures))

    def _follow(self, child: subprocess.Popen) -> None:
        lines: queue.Queue[str | None] = queue.Queue()

        def read() -> None:
            for line in child.stdout:
                lines.put(line.rstrip("\n"))
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        crates = ended = 0
        while True:
            try:
                line = lines.get(timeout=1)
            except queue.Empty:
                # What a child of it left open must not keep us when it has ended itself.
                ended += child.poll() is not None
                if ended > 2:
                    break
                if time.monotonic() - self.shown >= QUIET_SECONDS:
                    self.shown = time.monotonic()
                    count = f", {crates} crates" if crates else ""
                    print(f"  [{clock(self.shown - self.begin)}] {self.name} goes on{count}", flush=True)
                continue
            if line is None:
                break
            crates += bool(CRATE.match(line))
            if DULL.match(line):
                self.log.write(f"{line}\n")
            else:
                self.say(line)
        child.wait()


def end(child: subprocess.Popen) -> None:
    """End a child that is still at work, with its group."""
    if child.poll() is not None:
        return
    for sign, wait in ((signal.SIGINT, 15), (signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        _group(child, sign)
        try:
            child.wait(wait)
            break
        except subprocess.TimeoutExpired:
            pass
    _group(child, signal.SIGKILL)  # what it left


def _group(child: subprocess.Popen, sign: signal.Signals) -> None:
    try:
        os.killpg(child.pid, sign)
    except ProcessLookupError:
        pass


class Stages:
    def __init__(self, stages: list[Stage], logs: Path):
        self.stages, self.logs = stages, logs
        self.results: list[tuple[str, float, str]] = []

    def chosen(self, names: list[str], alone: bool) -> list[Stage]:
        """The named stages and what they need, in order; the usual ones when none is named."""
        known = {stage.name: stage for stage in self.stages}
        wanted = set()

        def want(name: str) -> None:
            if name not in wanted:
                wanted.add(name)
                for other in () if alone else known[name].needs + known[name].after:
                    want(other)

        for name in names or [stage.name for stage in self.stages if stage.usual]:
            if name not in known:
                raise Failure(f"there is no stage '{name}'; there are: {', '.join(known)}")
            want(name)
        return [stage for stage in self.stages if stage.name in wanted]

    def run(self, stages: list[Stage], environment: dict) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        bad: set[str] = set()
        for number, stage in enumerate(stages, 1):
            missing = [name for name in stage.needs if name in bad]
            if missing:
                bad.add(stage.name)
                self.results.append((stage.name, 0, f"NOT RUN: needs {', '.join(missing)}"))
                continue
            work = Work(stage.name, self.logs / f"{stage.name}.log", environment)
            work.say(f"=== {stage.name} ({number} of {len(stages)}): {stage.text}")
            result = "interrupted"
            try:
                stage.work(work)
                result = "ok"
            except Skip as reason:
                result = f"SKIPPED: {reason}"
                work.say(result)
            except (Failure, OSError) as failure:
                result = "FAILED"
                bad.add(stage.name)
                work.say(f"FAILED {stage.name}: {failure}")
            finally:
                self.results.append((stage.name, time.monotonic() - work.begin, result))
                work.log.close()

    def report(self) -> int:
        """Print the table; 0 when nothing failed."""
        bad = False
        print(f"\n{'STAGE':12} {'MINUTES':>7}  RESULT")
        for name, seconds, result in self.results:
            failed = result not in ("ok",) and not result.startswith("SKIPPED")
            bad |= failed
            log = f"  {self.logs / name}.log" if result == "FAILED" else ""
            print(f"{name:12} {clock(seconds):>7}  {result}{log}")
        print(f"{'all':12} {clock(sum(row[1] for row in self.results)):>7}  {'FAILED' if bad else 'ok'}", flush=True)
        return int(bad)
