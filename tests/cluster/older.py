"""A worker of older code: its tasks have the same names, and no base class.

Started by itself and not by Celery's command, which would import the package as its plug-in.
"""

import json
import os
import sys
import time

from celery import Celery

app = Celery('tests.cluster.older')
app.conf.update(json.loads(os.environ['CLUSTER_CONF']))


@app.task(bind=True, name='tests.cluster.app.quick')
def quick(self):
    told = self.request.headers['anarchon']
    line = {'job': told['job'], 'slot': told['slot'], 'event': 'start', 'at': time.time(), 'by': 'older'}
    with open(os.environ['CLUSTER_HISTORY'], 'ab', buffering=0) as file:
        file.write(json.dumps(line).encode() + b'\n')
    if told['job'] == 'fails':
        raise ValueError('as ever')


if __name__ == '__main__':
    if 'imports' in sys.argv:
        import anarchon_celery  # noqa: F401
    worker = app.Worker(hostname='older@here', pool='solo', loglevel='INFO')
    print('has the package' if 'anarchon_celery' in sys.modules else 'does not have the package', flush=True)
    worker.start()
