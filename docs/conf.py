"""How the site is built from the Markdown of this folder: ``make docs``."""

import re
from importlib.metadata import version as version_of

from celery import beat
from celery.schedules import BaseSchedule
from sphinx.util import inspect
from sphinx.util.inspect import stringify_signature

from anarchon_celery import testing

project = 'anarchon-celery'
author = 'the anarchon-celery developers'
copyright = author
release = version = version_of('anarchon-celery')

extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
source_suffix = {'.md': 'markdown'}
root_doc = 'index'
nitpicky = True
default_role = 'code'  # what a docstring has between single backticks

# Every heading down to the third level has the anchor that code hosts give it, so links work there and here.
myst_heading_anchors = 3
myst_links_external_new_tab = False

autodoc_member_order = 'bysource'
autodoc_typehints = 'signature'
napoleon_numpy_docstring = False

# Types of others in signatures: their documentation is not here, and building asks no network.
nitpick_ignore_regex = [
    (r'py:.*', r'(celery|collections|datetime|django|redis|sqlalchemy|typing|zoneinfo)\..*'),
    (r'py:.*', r'(date)?time|timedelta|tzinfo|[A-Z]\w*'),  # as signatures show them
    (r'py:.*', r'anarchon_celery\.(stores\.Store|protocol\.\w+|headers\.\w+)'),  # to be read, not promised
    (r'py:.*', r'anarchon_celery\.fencing\.Answer'),  # stands for whatever a function returns
]

html_theme = 'furo'
html_title = f'{project} {release}'
html_show_sphinx = False
html_copy_source = False
html_theme_options = {'navigation_with_keys': True}


def _signature(app, what, name, obj, options, signature, return_annotation):
    """Show what is called: not how others make it, nor what lets a schedule stand above a task."""
    made_by_us = obj in (testing.LentLease, testing.Stage) if what == 'class' else False
    if what == 'class' and (made_by_us or issubclass(obj, beat.Scheduler)):
        return '', None
    if what == 'class' and issubclass(obj, BaseSchedule):
        signature = stringify_signature(inspect.signature(obj.__init__, bound_method=True))
    modules = r'\b(typing|collections\.abc|datetime|zoneinfo)\.(?=[A-Za-z])'
    return signature and re.sub(modules, '', signature), return_annotation


def setup(app):
    app.connect('autodoc-process-signature', _signature)
