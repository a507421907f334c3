"""What is broken by hand in how slots are decided, floors rise, and runs are asked for."""

#: What is broken, the module, the text there, and what stands in its place.
BREAKS = [
    (
        'the claim ignores overlap',
        'claiming',
        'return bool(self.ledger.active.get(self.offer.job)) and not allowed',
        'return False',
    ),
    ('the claim ignores a pause', 'claiming', 'if job.paused is not None:', 'if False:'),
    (
        'the claim ignores the run that is there',
        'claiming',
        'if run is not None or (floor is not None and key.slot <= floor):',
        'if floor is not None and key.slot < floor:',
    ),
    (
        'a manual run raises the floor',
        'requests',
        '    return _answered(ledger.put_run(until(run, now, 0)))',
        '    decide(ledger, ledger.jobs[key.job], key.slot)\n'
        '    return _answered(ledger.put_run(until(run, now, 0)))',
    ),
    (
        'a manual run does not wait',
        'requests',
        "if asked.overlap != 'allow' and has_to_wait".replace("'", '"'),
        'if False and has_to_wait',
    ),
    (
        'a late slot that waits raises the floor',
        'claiming',
        '        if self.has_to_wait:\n            return',
        '        if self.has_to_wait:\n            self._new(key, late=late)\n            return',
    ),
    (
        'only the late slot itself waits, not those behind it',
        'claiming',
        'self.has_to_wait |=',
        'self.has_to_wait =',
    ),
    ('two slots wait under queue', 'claiming', '            self._displace()\n', ''),
    (
        'overlap is checked outside the claim: what is claimed meanwhile is not seen',
        'claiming',
        'return bool(self.ledger.active.get(self.offer.job)) and not allowed',
        'return any(it.state != "claimed" for it in self.ledger.active_of(self.offer.job)) and not allowed',
    ),
    ('an older slot displaces a newer one', 'claiming', ' or self._is_overtaken(new)):', '):'),
    (
        'cancel asks nobody to stop',
        'claiming',
        'elif run.stop is None:\n                self',
        'elif False:\n                self',
    ),
    (
        'a slot takes the place of a run that somebody asked for',
        'claiming',
        'if run.kind == "scheduled":\n                self._end(run, "skipped", "overlap")',
        'if True:\n                self._end(run, "skipped", "overlap")',
    ),
    (
        'cancel ends what somebody asked for',
        'claiming',
        'if run.kind == "scheduled":\n                    self._end',
        'if True:\n                    self._end',
    ),
    (
        'a chain is decided from any floor',
        'claiming',
        'if offer.chained and floor != offer.after:',
        'if False:',
    ),
    ('a leap is decided from any floor', 'claiming', 'if _leap_is_out_of_date(floor, offer):', 'if False:'),
    (
        'what is passed over leaves no record',
        'claiming',
        'if key is None:\n        return None\n    return ledger',
        'return None\n    return ledger',
    ),
    ('schedules share a floor', 'floors', 'if one in (None, known) else known', 'if True else known'),
    ('a claim asks no floor', 'claiming', 'or (floor is not None and key.slot <= floor):', 'or False:'),
    ('a job that is forgotten is decided no further', 'requests', 'decide(ledger, known, now)', 'pass'),
    (
        'what goes on is forgotten',
        'requests',
        'if key in ledger.runs and ledger.runs[key].ended]',
        'if key in ledger.runs]',
    ),
    (
        'who cancels does not tell the holder',
        'requests',
        'return ledger.put_run(replace(run, stop=reason)) if run.stop is None else run',
        'return run',
    ),
    (
        'who cancels changes what is over',
        'requests',
        'if run.ended and not run.may_start_late:\n        return run\n',
        '',
    ),
    (
        'a young store decides slots',
        'claiming',
        'if wait := ledger.young_for(offer.lease, now):',
        'if wait := 0:',
    ),
    ('a young store lets runs enter', 'requests', 'wait = ledger.young_for(asked.lease, now)', 'wait = 0'),
    (
        'writes that are lost are not noticed at a claim',
        'claiming',
        'offer.hash, offer.floor, now) for job, offer in jobs):',
        'offer.hash, None, now) for job, offer in jobs):',
    ),
]
