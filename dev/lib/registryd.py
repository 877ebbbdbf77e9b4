"""The process behind dev/registry: Debian's docker-registry, and the doors to it.

The registry listens on a socket in its folder. This process listens on loopback and on the host's side
of every cluster link, those that do not exist yet included, and passes connections on; no other
address of the machine gets a door. It holds a lock for as long as it lives, and the registry ends
with it.

usage: registryd.py FOLDER PORT
"""

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import clusternet  # noqa: E402
from devlib import locked  # noqa: E402

IP_FREEBIND = 15  # <linux/in.h>: listen on an address that the machine does not have yet
PR_SET_PDEATHSIG = 1
CHUNK = 1 << 18
CONFIG = """version: 0.1
log: {{level: warn, accesslog: {{disabled: true}}}}
storage:
  filesystem: {{rootdirectory: {data}}}
  delete: {{enabled: true}}
http: {{net: unix, addr: registry.sock, relativeurls: true, secret: local}}
"""


def listen(port: int) -> list[socket.socket]:
    addresses = ["127.0.0.1", *(clusternet.Net(number).host for number in clusternet.NUMBERS)]
    doors = []
    for address in addresses:
        door = socket.socket()
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)
        door.bind((address, port))
        doors.append(door)
    return doors


def start_registry(folder: Path) -> subprocess.Popen:
    (folder / "registry.sock").unlink(missing_ok=True)
    (folder / "config.yml").write_text(CONFIG.format(data=folder / "data"))
    prctl = ctypes.CDLL(None).prctl
    # The kernel ends the registry when this process is gone, however it went.
    return subprocess.Popen(["docker-registry", "serve", str(folder / "config.yml")], cwd=folder,
                            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL))


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()


async def serve(doors: list[socket.socket], registry: subprocess.Popen) -> None:
    async def connection(reader, writer):
        try:
            # By its short name: the path of a socket may have 107 letters.
            inner_reader, inner_writer = await asyncio.open_unix_connection("registry.sock", limit=CHUNK)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))
        writer.close()
        inner_writer.close()

    for door in doors:
        await asyncio.start_server(connection, sock=door, limit=CHUNK)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    watch = asyncio.create_task(asyncio.to_thread(registry.wait))
    watch.add_done_callback(lambda _: ended.set())
    await ended.wait()
    registry.kill()


def main() -> None:
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir(folder)
    with locked(folder / "running"):
        doors = listen(port)
        asyncio.run(serve(doors, start_registry(folder)))


main()
