"""On which file systems SQLite cannot be a store: those that machines share, where locks fail.

SQLite promises nothing there: locks of one machine may not be seen by another one, and the memory that
the processes of a write-ahead log share is never shared over a network. What would follow is a slot that
two nodes win, or a file beyond repair.

Which file system a path is on is read from Linux' table of mounts: it has the names of those in user
space (``fuse.sshfs``), where the number that ``statfs`` has is one for all of them, also for those of
local disks. On other systems, and of a name that is not known here, nothing is assumed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import StoreUnusable

#: Where Linux lists what is mounted, as this process sees it.
MOUNTS = Path("/proc/self/mountinfo")

#: File systems that machines share, by their names; of one in user space after ``fuse.``.
SHARED = {
    "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "smbnetfs", "9p", "afs", "auristorfs", "coda", "ncpfs",
    "ceph", "ceph-fuse", "glusterfs", "lustre", "beegfs", "gpfs", "orangefs", "pvfs2", "moosefs", "mfs",
    "juicefs", "JuiceFS", "seaweedfs", "sshfs", "davfs", "davfs2", "curlftpfs", "afpfs", "hdfs", "rclone",
    "s3fs", "goofys", "mount-s3", "gcsfuse", "blobfuse", "blobfuse2", "vboxsf", "vmhgfs", "vmhgfs-fuse",
    "prl_fs",
}  # fmt: skip


class Mount(NamedTuple):
    """One line of the table."""

    device: str
    point: str
    kind: str


def mounts(table: str) -> Iterator[Mount]:
    """Read the table of mounts; see proc(5). A line that cannot be read is passed over."""
    for line in table.splitlines():
        before, separator, after = line.partition(" - ")
        fields, kind = before.split(" "), after.partition(" ")[0]
        if separator and len(fields) > 4:
            yield Mount(fields[2], _unescaped(fields[4]), kind)


def _unescaped(text: str) -> str:
    """Blanks and the like stand as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def kind_at(path: str, table: str, device: str | None = None) -> str | None:
    """Return the name of the file system that a real path is on.

    ``device`` is what the system says of the path: a mount that lies hidden below another one has
    another device.
    """
    found = [one for one in mounts(table) if _is_below(path, one.point)]
    found = [one for one in found if one.device == device] or found
    # Of two at one place the later one lies above.
    return max(enumerate(found), key=lambda it: (len(it[1].point), it[0]))[1].kind if found else None


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def refuse_a_shared_one(path: str) -> None:
    """Refuse a file that is on, or would be made on, a file system that machines share.

    Raises:
        StoreUnusable: It is; one line that names the path and the file system.
    """
    kind = _kind_here(os.path.realpath(path))
    if kind is not None and kind.removeprefix("fuse.") in SHARED:
        raise StoreUnusable(
            f"{path} is on {kind}, a file system that machines share, where SQLite's locks keep nobody out: "
            "a file on a disk of this machine is right, or another store (Redis, PostgreSQL, MariaDB)"
        )


def _kind_here(path: str) -> str | None:
    there = path if os.path.exists(path) else os.path.dirname(path)
    try:
        number = os.stat(there).st_dev
        table = MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError:
        return None
    return kind_at(there, table, f"{os.major(number)}:{os.minor(number)}")
