"""Everything this package raises on purpose.

::

    AnarchonError
    ├── SettingError        a setting, or one entry's policy, that cannot be meant
    ├── ScheduleError       a schedule that cannot be read, or that never fires
    ├── HeaderError         a message header of a version this worker does not know
    └── StoreError          the store did not do what was asked
        ├── StoreUnreachable    no answer: down, refused, timed out; it may have acted
        └── StoreUnusable       an answer that rules it out: wrong version, no right, read-only

The two exceptions that end a run from inside, ``LeaseLost`` and ``HandedOver``, are Celery's
kind of exception and live in :mod:`anarchon_celery.lease`.

The message of each is one line for the person who has to act on it: what was given, where, and
what would be right.
"""


class AnarchonError(Exception):
    """The parent of all errors of this package."""


class SettingError(AnarchonError):
    """A setting, or one entry's policy, that cannot be meant."""


class ScheduleError(AnarchonError):
    """A schedule that cannot be read, or that never fires."""


class HeaderError(AnarchonError):
    """A message header of a version, or with a content, that this worker does not know."""


class StoreError(AnarchonError):
    """The store did not do what was asked."""


class StoreUnreachable(StoreError):
    """No answer from the store: it is down, refused, or took too long. It may have acted."""


class StoreUnusable(StoreError):
    """The store answered, and its answer rules it out until somebody changes something."""
