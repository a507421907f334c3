"""Everything this package raises on purpose.

::

    AnarchonError
    ├── SettingError        a setting, or one entry's policy, that cannot be meant
    ├── ScheduleError       a schedule that cannot be read, or that never fires
    ├── ArgumentsError      arguments that a run cannot be asked for with
    ├── HeaderError         a message header that cannot be read
    │   └── UnknownVersion      one of a version this worker does not know; another may
    ├── StaleFence          a write that was refused: somebody with a higher fence has written
    └── StoreError          the store did not do what was asked
        ├── StoreUnreachable    no answer: down, refused, timed out; it may have acted
        ├── StoreUnusable       an answer that rules it out: wrong version, no right, read-only
        └── StoreReplaced       another store than before: whoever has jobs in it registers them first

``Stopped`` is no error: it ends a beat.

The exceptions that end a run from inside, ``LeaseLost`` and ``HandedOver``, are Celery's kind of
exception and live in :mod:`anarchon_celery.lease`; so does what a ``StaleFence`` is inside a run.

The message of each is one line for the person who has to act on it: what was given, where, and
what would be right.
"""

import re

#: The longest text of an error that goes into a log line or a record.
LONGEST_LINE = 1000


def shortened(text: str) -> str:
    """Leave out the middle of words as long as files: before stands what it is about, behind what is so."""
    if len(text) > LONGEST_LINE:
        text = re.sub(r"(\S{60})\S{100,}(\S{20})", r"\1…\2", text)
    return text if len(text) <= LONGEST_LINE else f"{text[:500]} … {text[-400:]}"


class Stopped(SystemExit):
    """A signal ends this beat, wherever it is: no ``exit()`` of the code that it interrupts."""


class AnarchonError(Exception):
    """The parent of all errors of this package."""

    def __str__(self) -> str:
        """Say it at a length that is read."""
        return shortened(super().__str__())


class SettingError(AnarchonError):
    """A setting, or one entry's policy, that cannot be meant."""


class ScheduleError(AnarchonError):
    """A schedule that cannot be read, or that never fires."""


class ArgumentsError(AnarchonError):
    """Arguments that a run cannot be asked for with: too many, or no JSON."""


class HeaderError(AnarchonError):
    """A message header that cannot be read."""


class UnknownVersion(HeaderError):
    """A message header of a version that this worker does not know; another one may."""


class StaleFence(AnarchonError):
    """A write that was refused: somebody with a higher fence has written.

    Attributes:
        resource: what was to be written, in words.
        fence: the fence it was to be written with; 0 is that of a call by hand.
        stored: the fence that was found there; None if that is not known.
    """

    def __init__(self, resource: str, fence: int, stored: int | None = None) -> None:
        """Keep all three as arguments: that is how Celery's results carry an exception."""
        super().__init__(resource, fence, stored)
        self.resource, self.fence, self.stored = resource, fence, stored

    def __str__(self) -> str:
        """Say who is late, and for whom."""
        later = "a later run" if self.stored is None else f"a run with fence {self.stored}"
        late = f"fence {self.fence}" if self.fence else "a call outside a run (fence 0)"
        return f"{self.resource}: written by {later}, so {late} is refused"


class StoreError(AnarchonError):
    """The store did not do what was asked."""


class StoreUnreachable(StoreError):
    """No answer from the store: it is down, refused, or took too long. It may have acted."""


class StoreUnusable(StoreError):
    """The store answered, and its answer rules it out until somebody changes something."""


class StoreReplaced(StoreError):
    """The store has forgotten what this node goes by: it was wiped, restored, or lost writes."""


def in_one_line(reason: BaseException) -> str:
    """Return an exception as one line that any log and any store can keep.

    It is somebody's: its text may have line breaks, be as long as a file, hold half a character (a
    file name that was no UTF-8), or fail to be made.
    """
    name = type(reason).__name__
    try:
        text = " ".join(f"{name}: {reason}".split()).removesuffix(":")
    except Exception:
        text = f"{name}: (its text cannot be made)"
    text = text.encode("utf-8", "replace").decode().replace("\0", "?")
    return text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 3]}..."
