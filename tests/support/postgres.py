"""A PostgreSQL server of the tests' own, made with the programs that the machine has installed."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

SECONDS = 60
_USER = "postgres"
"""What the server runs as where the tests run as root, which it refuses to be."""
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "autovacuum": "off",
}


def programs() -> Path | None:
    """The folder of initdb and pg_ctl; None where they aren't installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return None if on_path is None else Path(on_path).resolve().parent


@contextlib.contextmanager
def server(folder: Path) -> Iterator[str]:
    """A server's URL without a database, such as ``postgresql://postgres@127.0.0.1:1234``."""
    account = pwd.getpwnam(_USER) if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="meshnet-pg-") as name:
        data, port = Path(name), _free_port()
        if account is not None:
            os.chown(data, account.pw_uid, account.pw_gid)
        cluster = str(data / "cluster")
        options = " ".join(f"-c {key}='{value}'" for key, value in _SETTINGS.items())
        _run(account, f"{folder}/initdb", "-D", cluster, "-U", _USER, "-A", "trust", "-N")
        control = (f"{folder}/pg_ctl", "-D", cluster, "-w", "-t", str(SECONDS))
        _run(account, *control, "-l", f"{data}/log", "-o", f"-p {port} {options}", "start")
        try:
            yield f"postgresql://{_USER}@127.0.0.1:{port}"
        finally:
            _run(account, *control, "-m", "fast", "stop")


def _run(account: pwd.struct_passwd | None, *command: str) -> None:
    done = subprocess.run(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=SECONDS + 10,
        check=False,
        cwd="/",
        user=None if account is None else account.pw_uid,
        group=None if account is None else account.pw_gid,
        extra_groups=None if account is None else [],
    )
    assert done.returncode == 0, f"{command}: {done.stderr.decode()}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
