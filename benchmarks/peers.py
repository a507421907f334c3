"""The peers' own environment, under ``build/``: from the registry, with the very Celery that we run on."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
WANTED = Path(__file__).with_name("requirements-peers.txt")
FOLDER = ROOT / "build" / "peers"

#: What all contestants run on, in one version.
SHARED = ("celery", "kombu", "redis", "psycopg", "psycopg-binary", "billiard")


def interpreter() -> Path:
    """Return the peers' Python, installed now if there is none yet, or another one was wanted."""
    python, stamp = FOLDER / "bin" / "python", FOLDER / "wanted"
    wanted = "\n".join([sys.version, WANTED.read_text(), *_shared()])
    if not (python.exists() and stamp.exists() and stamp.read_text() == wanted):
        subprocess.run([sys.executable, "-m", "venv", "--clear", FOLDER], check=True)
        install = [python, "-m", "pip", "install", "-qqq", "--disable-pip-version-check"]
        subprocess.run([*install, "-r", WANTED, "celery[redis]", *_shared()], check=True)
        stamp.write_text(wanted)
    return python


def _shared() -> list[str]:
    return [f"{name}=={version(name)}" for name in SHARED]
