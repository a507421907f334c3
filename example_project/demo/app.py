"""The quick start's app as the demo's nodes run it: the same jobs, in a place of their own."""

import json
import os
import uuid
from pathlib import Path

from kombu.transport import filesystem

from example_project.quick_start import app


class WholeMessages(filesystem.Channel):
    """kombu's folder of messages, for several impatient workers.

    kombu writes a message under its final name, so that a worker which looks at that very moment
    reads half of it, loses it and dies. Here it gets its name once it is written.
    """

    def _put(self, queue, payload, **_):
        folder = Path(self.data_folder_out)
        message = folder / f'{uuid.uuid4()}.unfinished'
        message.write_text(json.dumps(payload))
        at = os.stat(message).st_mtime_ns
        message.rename(folder / f'{at}_{message.stem}.{queue}.msg')


filesystem.Transport.Channel = WholeMessages

if prefix := os.environ.get('DEMO_PREFIX'):  # on Redis: several demos at once do not meet
    app.conf.anarchon_prefix = prefix
    app.conf.broker_transport_options = {'global_keyprefix': f'{prefix}:'}
else:
    app.conf.broker_transport_options['polling_interval'] = 0.2
