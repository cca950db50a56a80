"""Find server programs, and say how to install a missing one."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from repot.errors import ProgramMissing

#: Where packages install servers outside an ordinary user's PATH.
_MORE_DIRECTORIES = (
    str(Path(sys.executable).parent),
    "/usr/sbin",
    "/usr/local/sbin",
    "/opt/homebrew/bin",
    "/opt/homebrew/sbin",
    "/usr/local/opt/rabbitmq/sbin",
)

#: Debian's wrapper switches to the user rabbitmq and refuses all others; this is the server's own program.
_DEBIAN_WRAPPER = "rabbitmq-script-wrapper"
_DEBIAN_RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"


@dataclass(frozen=True, slots=True)
class Executable:
    """A server program, its possible names, and how to install it."""

    names: tuple[str, ...]
    debian: str
    macos: str
    docker: str

    def find(self) -> str:
        """Return the path of the first of its names that is installed.

        Raises:
            ProgramMissing: none of them is installed; the hint says how to install it.
        """
        for name in self.names:
            path = shutil.which(name) or shutil.which(name, path=":".join(_MORE_DIRECTORIES))
            if path and Path(path).resolve().name == _DEBIAN_WRAPPER:
                path = _DEBIAN_RABBITMQ
            if path:
                return path
        message = f"{' or '.join(self.names)} is not installed"
        raise ProgramMissing(
            message,
            hint=f"Debian, Ubuntu: {self.debian}\n      macOS: {self.macos}\n      Docker: {self.docker}",
        )


REDIS = Executable(
    ("redis-server", "valkey-server"),
    debian="sudo apt-get install redis-server",
    macos="brew install redis",
    docker="run repot in an image that holds it; `docker run --rm redis:8 redis-server --version` shows one",
)
RABBITMQ = Executable(
    ("rabbitmq-server",),
    debian="sudo apt-get install rabbitmq-server",
    macos="brew install rabbitmq",
    docker="run repot in an image that holds it; `docker run --rm rabbitmq:4-management rabbitmqctl version` shows one",
)
TOXIPROXY = Executable(
    ("toxiproxy-server",),
    debian="`make setup` in repot's repository, and its .tools on PATH; or with Go: GOBIN=$PWD go install "
    "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0 && sudo mv server /usr/local/bin/toxiproxy-server",
    macos="brew install shopify/shopify/toxiproxy",
    docker="docker create --name t ghcr.io/shopify/toxiproxy:2.12.0 && "
    "sudo docker cp t:/toxiproxy /usr/local/bin/toxiproxy-server",
)
