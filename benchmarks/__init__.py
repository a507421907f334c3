"""What it costs, beside what it costs elsewhere: ``python -m benchmarks``.

Each contestant is a real scheduler in a process of its own, on the same servers, private ones. The
rounds of all of them take turns, so that what disturbs the machine disturbs each; what counts are the
ratios, the absolute figures are one machine's.
"""
