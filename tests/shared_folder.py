"""A real file system in user space, and a store in it: ``python -m tests.shared_folder FOLDER KIND``.

To be run as root in mounts of its own (``unshare --mount``): it leaves nothing behind, however it ends.
The file system is an empty folder, in which nothing can be made.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
import threading

from anarchon_celery.errors import StoreError
from anarchon_celery.stores import open_store

LOOKUP, FORGET, GETATTR, INIT = 1, 2, 3, 26

FOLDER = struct.pack('<6Q10I', 1, *[0] * 8, stat.S_IFDIR | 0o755, 2, *[0] * 3, 4096, 0)
ANSWERS = {
    INIT: struct.pack('<4I2HI', 7, 26, 65536, 0, 12, 10, 65536),
    GETATTR: struct.pack('<Q2I', 1, 0, 0) + FOLDER,
}


def mount(folder: str, kind: str) -> int:
    """Mount it; return what the kernel asks through."""
    device = os.open('/dev/fuse', os.O_RDWR)
    options = f'fd={device},rootmode=40000,user_id=0,group_id=0'
    words = [kind, folder, f'fuse.{kind}', options]
    source, place, sort, told = (word.encode() for word in words)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source, place, sort, 0, told):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return device


def serve(device: int) -> None:
    """Answer what the kernel asks."""
    while True:
        _length, operation, number = struct.unpack_from('<2IQ', os.read(device, 1 << 20))
        if operation == FORGET:
            continue
        answer = ANSWERS.get(operation, b'')
        error = 0 if answer else -errno.ENOENT if operation == LOOKUP else -errno.ENOSYS
        os.write(device, struct.pack('<IiQ', 16 + len(answer), error, number) + answer)


if __name__ == '__main__':
    threading.Thread(target=serve, args=[mount(*sys.argv[1:])], daemon=True).start()
    try:
        print(open_store(f'sqlite:///{sys.argv[1]}/jobs.db').jobs())
    except StoreError as error:
        print(f'{type(error).__name__}: {error}')
