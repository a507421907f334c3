"""Processes that are hit at a named point: before or after they claim, publish, start, renew, write, finish …

``python -m tests.crash_points --all`` plays each point with each fault: real beats and workers, one of which
is killed, or stopped for three leases, or meets an exception, or loses an answer, exactly there. Then what
the store recorded, what each verb answered and what the tasks wrote has to fit the protocol's invariants.

- :mod:`.points` names the points, and makes the cases.
- :mod:`.striking` is in the processes: it writes down each verb, and what of its :mod:`.answers` counts, and
  strikes.
- :mod:`.app` is the app that they run; :mod:`.places` are the stores and brokers.
- :mod:`.scene` keeps two beats and two workers alive, and plays a case: it orders :mod:`.blows`;
  :mod:`.playing` has several play side by side.
- :mod:`.breaks` shows that the cases can fail: rules are broken, and each break has to be found.
- :mod:`.told` reads what the processes wrote down, :mod:`.walls` holds the invariants, :mod:`.outcome` is
  what came of a case, :mod:`.summary` of all.
"""
