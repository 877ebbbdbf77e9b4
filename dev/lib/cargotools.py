"""Cargo, its output folder, and the tools for it that the machine may lack.

A tool that is already on the machine is used as it is. A missing one is built from crates.io, once, into
$GANTRY_CACHE/cargo-tools, with little optimisation: it runs for seconds, and would build for minutes.
"""

import os
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

from devlib import REPO, Failure, cache_dir, locked, say

PROGRAMS = ("gantry", "gantry-simnode", "xtask")
PINS = {"cargo-deny": "0.20.2", "cargo-nextest": "0.9.143", "cargo-llvm-cov": "0.9.1"}
# Where nobody looks on, a lock file that is out of date is an error, not a thing to repair.
LOCKED = ["--locked"] if os.environ.get("CI") else []
# What clusters and `make up` run. `dev` shares what the tests build anyway; `fast` (see Cargo.toml) is for measuring.
PROFILE = os.environ.get("GANTRY_PROFILE") or "dev"
QUICK = {"CARGO_PROFILE_RELEASE_OPT_LEVEL": "1", "CARGO_PROFILE_RELEASE_LTO": "off",
         "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16", "CARGO_PROFILE_RELEASE_DEBUG": "false",
         "CARGO_PROFILE_RELEASE_STRIP": "symbols"}


def home() -> Path:
    return cache_dir() / "cargo-tools"


def path() -> str:
    """The search path with the folder of the tools, and of cargo where rustup put it."""
    usual = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo") / "bin"
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(usual), str(home() / "bin")])


def cargo() -> str:
    found = shutil.which("cargo", path=path())
    if not found:
        raise Failure("there is no cargo: install Rust with rustup; rust-toolchain.toml names the version")
    return found


def target() -> Path:
    """Where cargo puts what it builds."""
    return REPO / (os.environ.get("CARGO_TARGET_DIR") or "target")


def program(name: str) -> Path:
    """A program of ours, as `build` leaves it."""
    return target() / ("debug" if PROFILE == "dev" else PROFILE) / name


def build_command() -> list[str]:
    """The command that builds our programs. Always all: with another choice, features differ and most is built twice."""
    return [cargo(), "build", *LOCKED, f"--profile={PROFILE}", *(f"--package={name}" for name in PROGRAMS)]


def ensure(*names: str) -> None:
    """Build what is missing of these tools."""
    for name in names:
        if shutil.which(name, path=path()):
            continue
        with locked(home() / "lock", f"waiting for another build of {name}"):
            if not shutil.which(name, path=path()):
                _install(name)


def _install(name: str) -> None:
    begin, lines = time.monotonic(), []
    say(f"building {name} {PINS[name]} with cargo, once; that takes some minutes")
    work = home() / "build"  # kept when this is interrupted, so that the next run goes on
    child = subprocess.Popen(
        [cargo(), "install", "--locked", f"--version={PINS[name]}", f"--root={home()}", name],
        cwd=REPO, env={**os.environ, **QUICK, "CARGO_TARGET_DIR": str(work)}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    reader = threading.Thread(target=lambda: lines.extend(child.stdout), daemon=True)
    reader.start()
    shown = begin
    try:
        while child.poll() is None:
            time.sleep(0.2)
            if time.monotonic() - shown >= 20:
                shown = time.monotonic()
                crates = sum(bool(re.match(r"\s+Compiling ", line)) for line in list(lines))
                say(f"  [{shown - begin:3.0f} s] {name}: {crates} crates compiled")
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()
    reader.join(5)
    if child.returncode:
        raise Failure(f"{name} could not be built:\n{''.join(lines[-25:])}")
    shutil.rmtree(work, ignore_errors=True)
    say(f"{name} is built ({time.monotonic() - begin:.0f} s)")
