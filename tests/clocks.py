"""A wall clock that a test moves while a real process runs by it."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from tests.servers import require


class ShiftedClock:
    """The wall clock of the processes that are started with ``env``, so many seconds ahead or behind.

    Their monotonic clocks, and the clocks of everybody else, stay as they are: as after an NTP step,
    or ``date -s``.
    """

    def __init__(self, folder: Path) -> None:
        """Compile what is preloaded, into ``folder``."""
        source = Path(__file__).with_name('shifted_clock.c')
        library = folder / 'shifted_clock.so'
        compiled = [require('cc'), '-shared', '-fPIC', '-O1', '-o', str(library), str(source), '-ldl', '-lm']
        subprocess.run(compiled, check=True)
        self.file = folder / 'shifted_clock'
        self.file.write_bytes(struct.pack('d', 0.0))
        self.env = {'LD_PRELOAD': str(library), 'SHIFTED_CLOCK': str(self.file)}

    def shift(self, seconds: float) -> None:
        """Set the clock so many seconds ahead of the machine's, or behind it; it takes effect at once."""
        with self.file.open('r+b') as file:
            file.write(struct.pack('d', float(seconds)))
