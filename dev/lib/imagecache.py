"""The cache of images: folders and files named by the hash of what they are made from.

An entry appears under its name only when it is complete. Entries of a kind that have not been used
for long are thrown away when a new one is made.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from devlib import cache_dir, locked

KEEP = 24  # of a kind: several versions of all images that the tests use


def home() -> Path:
    return cache_dir() / "images"


def key(*parts) -> str:
    """A name for what these parts give: modules count with their source, paths with their content."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            content = tree_digest(part)
        elif hasattr(part, "__file__"):
            content = Path(part.__file__).read_bytes()
        else:
            content = str(part).encode()
        total.update(len(content).to_bytes(8, "big") + content)
    return total.hexdigest()[:20]


def tree_digest(path: Path) -> bytes:
    """Of a file, or of all that is in a folder: names, modes and content."""
    total = hashlib.sha256()
    if path.is_dir() and not path.is_symlink():
        for entry in sorted(path.iterdir()):
            total.update(entry.name.encode() + b"\0" + tree_digest(entry))
    elif path.is_symlink():
        total.update(b"link " + os.readlink(path).encode())
    else:
        with open(path, "rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
        total.update(oct(path.stat().st_mode & 0o777).encode())
    return total.digest()


def folder(kind: str, name: str, make) -> Path:
    """The folder of this name; `make(path)` fills an empty one when it is not there."""
    return _entry(kind, name, make, lambda parent: Path(tempfile.mkdtemp(prefix="new-", dir=parent)))


def file(kind: str, name: str, make) -> Path:
    """The file of this name; `make(path)` writes it when it is not there."""
    def new(parent: Path) -> Path:
        descriptor, path = tempfile.mkstemp(prefix="new-", dir=parent)
        os.close(descriptor)
        return Path(path)

    return _entry(kind, name, make, new)


def _entry(kind: str, name: str, make, new) -> Path:
    final = home() / kind / name
    if not final.exists():
        with locked(home() / f".{kind}.lock", f"waiting for another dev/image that makes {kind}"):
            if not final.exists():
                final.parent.mkdir(parents=True, exist_ok=True)
                for leftover in final.parent.glob("new-*"):
                    _remove(leftover)
                part = new(final.parent)
                try:
                    make(part)
                    part.chmod(0o755 if part.is_dir() else 0o644)
                    part.rename(final)
                finally:
                    _remove(part)
                _throw_away_old(final.parent)
    os.utime(final)
    return final


def _throw_away_old(parent: Path) -> None:
    entries = sorted(parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in entries[KEEP:]:
        _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def give(source: Path, out: Path) -> None:
    """Put a cached file where the caller wants it; it appears there when it is complete. One that is there from an
    earlier call, and was not touched, stays: some are large."""
    out.parent.mkdir(parents=True, exist_ok=True)
    note = out.with_name(f".{out.name}.from")
    if note.exists() and out.exists() and note.read_text() == _given(source, out):
        return
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    try:
        # A copy, not a link: whoever writes to `out` must not write to the cache.
        shutil.copyfile(source, part)
        part.rename(out)
        note.write_text(_given(source, out))
    finally:
        part.unlink(missing_ok=True)


def _given(source: Path, out: Path) -> str:
    """Which entry of the cache (its name says what it is made from), and how the copy looks."""
    about = out.stat()
    return f"{source.parent.name}/{source.name} {about.st_size} {about.st_mtime_ns} {about.st_ino}"
