"""The table of endings: what becomes of a task and of its run, by pool and by way to come to an end.

It is made by real workers and written to docs/endings.md by ``python -m tests.cluster.endings --write``;
``tests/cluster/test_endings.py`` compares what it sees with that page.
"""
