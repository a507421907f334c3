"""The quick start's app as the demo's nodes run it: the same jobs, in a place of their own."""

import os

import example_project.whole_messages  # noqa: F401
from example_project.quick_start import app

if prefix := os.environ.get('DEMO_PREFIX'):  # on Redis: several demos at once do not meet
    app.conf.anarchon_prefix = prefix
    app.conf.broker_transport_options = {'global_keyprefix': f'{prefix}:'}
else:
    app.conf.broker_transport_options['polling_interval'] = 0.2
