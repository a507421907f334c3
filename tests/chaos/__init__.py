"""A cluster of real beats and workers on real servers, struck again and again; then each promise is checked.

``python -m tests.chaos --store redis --seconds 60 --seed 1``. What happened is one history of JSON lines,
appended to by all processes (:mod:`.journal`): what the tasks and nodes wrote, what was done to them and
when, and what the store and the resources had recorded. All that is checked is read from that file, so
``--read FILE`` gives the same report again. The clock of the history is the machine's monotonic one.
"""
