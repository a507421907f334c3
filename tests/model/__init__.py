"""The explorer: all orders in which beats, workers, messages and faults may meet, by the package's rules.

``python -m tests.model`` walks all states that small clusters can reach, each step a transition of the
package itself, and holds the protocol's invariants in each. Then it breaks the rules, one after the
other, and has to find each break; with ``--turned`` each comparison of the rules too.

- :mod:`.loading` gives the rules, as they are or with one of them broken.
- :mod:`.store` is what the store makes of a call; each step of it is carried out once.
- :mod:`.cluster` is the cluster: its scene, its states; :mod:`.world` is one moment, while something
  happens.
- :mod:`.happenings` is all that may happen next: :mod:`.beats`, :mod:`.workers`, :mod:`.people`.
- :mod:`.walls` holds the invariants.
- :mod:`.walking` walks, and finds the shortest way to what must not be.
- :mod:`.scenes` are the small clusters that are walked.
- :mod:`.mutants` are the breaks by hand, :mod:`.turned` the comparisons turned around; :mod:`.same` says
  which of those nothing tells from the rule, and :mod:`.suite` has the tests of the store find what no
  walk can.

Not walked, since time is no number here: a young store that takes runs over, a run that is put back beside
one that runs, a clock that goes back (``rewind``), a schedule that comes back
after hours, a job that no node has had for a day, a request that is repeated after ten minutes, a message
that is a day older than a loss of writes, deadlines that grow with each dispatch. The breaks
of these rules (:mod:`.breaks_of_time`) are found by the tests of the store instead. Nor: skips that are
folded, more than eight schedules of a job, the time between a wipe and the first call of somebody who
knew the store before (:func:`~anarchon_celery.youth.met`), and two losses of the store after each other.
Signals, threads and what Celery does are not of the protocol: other tests have them.
"""
