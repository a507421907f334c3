"""What nobody meant: messages, rows, settings and cron texts at random. For longer: ``python -m tests.fuzz``.

Each part is a property that takes what it needs from hypothesis, so that what fails is made small and said
again. hypothesis alone: what has to be guessed are values of a known shape, which it draws. A fuzzer that is
led by coverage (atheris) takes bytes, would have to guess that shape first, and is not there for each Python.
"""
