"""The quick start, played by itself: ``python -m example_project.demo``, or ``make demo``.

Three nodes share the jobs of ``quick_start.py``. One wins each slot. The node that runs ``report``
is stopped, and another starts that run again; the next one that runs it is killed, and again another
does. The exit status is 0 if the store recorded what the story tells, 1 with what differs.

All of it happens in a temporary folder; nothing of it is left, neither files nor processes. Every
step waits for a line that a node writes, with a deadline.
"""
