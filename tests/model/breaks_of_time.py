"""What is broken by hand where time is a number: no walk finds these, and the tests of the store do.

The last one lets a walk go on without end, since there each dispatch has a number of its own.
"""

#: What is broken, the module, the text there, and what stands in its place.
BREAKS = [
    (
        'a young store takes runs over',
        'transitions',
        'if run.state in ("running", "queued") and (wait :=',
        'if run.state in ("queued",) and (wait :=',
    ),
    (
        'a young store dispatches again what could not start',
        'transitions',
        'if run.state in ("running", "queued") and (wait :=',
        'if run.state in ("running",) and (wait :=',
    ),
    (
        'a run is put back beside one that was claimed since',
        'holding',
        'ledger.young_for(holding.lease, now) and (run is not None or others):',
        'ledger.young_for(holding.lease, now) and run is not None:',
    ),
    (
        'a run is put back over one that was recorded since',
        'holding',
        'ledger.young_for(holding.lease, now) and (run is not None or others):',
        'ledger.young_for(holding.lease, now) and others:',
    ),
    (
        'a run is put back beside one that runs',
        'holding',
        'if any(other.state == "running" and other.fence > holding.fence for other in others):',
        'if False:',
    ),
    (
        'what was claimed meanwhile does not wait for what is put back',
        'holding',
        '        if other.state != "running":\n            buffer(ledger, other, now)',
        '        pass',
    ),
    (
        'who knew more does not tell a wiped store',
        'transitions',
        'if ledger.origin.is_wiped and is_below(job, asked.hash, asked.floor, now):',
        'if False:',
    ),
    (
        'a store is young for ever',
        'youth',
        'return min(lease, max(0, young_since + lease - now))',
        'return lease',
    ),
    (
        'a clock that went back far leaves a store young',
        'youth',
        'if young_since is None or now < young_since - lease:',
        'if young_since is None:',
    ),
    (
        'an older state that comes back is not noticed',
        'youth',
        'came_back = caller.at is not None and caller.at > origin.born',
        'came_back = False',
    ),
    (
        'a note of a node that is lost is not noticed',
        'youth',
        'return noted is None or noted < answered',
        'return noted is None',
    ),
    (
        'the message of a run that ended long ago starts it',
        'holding',
        'if is_old and is_decided and asked.key.kind == "scheduled":',
        'if False:',
    ),
    (
        'a run whose job nobody has is dispatched for ever',
        'transitions',
        'if job is None or job.seen < now - ORPHANED_AFTER:',
        'if job is None:',
    ),
    (
        'a start timeout does not grow',
        'transitions',
        'doubled: int = first << (dispatches - 1)',
        'doubled: int = first',
    ),
    (
        'a floor stays ahead of a clock that went back',
        'floors',
        'return None if floor is None else min(floor, now)',
        'return floor',
    ),
    (
        'a deadline stays ahead of a clock that went back',
        'transitions',
        'run.deadline > now + run.span:',
        'run.deadline > now + 2 * run.span + 86_400_000:',
    ),
    (
        'a schedule that comes back makes up for the time between',
        'floors',
        'known = known._replace(since=now)\n',
        'pass\n',
    ),
    (
        'a request that is repeated enters twice',
        'requests',
        'if run.request == nonce and run.slot >= since), None):',
        'if False), None):',
    ),
    (
        'who has to wait is not known as supervised',
        'holding',
        'if not job.supervised:',
        'if False:',
    ),
]
