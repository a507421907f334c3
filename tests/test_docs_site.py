"""The site builds without a warning, and what leads somewhere gets there, here and on a code host."""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from tests import pages
from tests.pages import DOCS, ROOT

EVERY = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *sorted(DOCS.glob('*.md'))]
PICTURES = sorted(DOCS.glob('images/*.svg'))


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    """Build the site, where every warning is an error."""
    pytest.importorskip('sphinx', reason='the extra docs is not installed')
    folder = tmp_path_factory.mktemp('site')
    words = ['-W', '-n', '-q', '--keep-going', '-d', folder / 'trees', DOCS, folder / 'html']
    done = subprocess.run([sys.executable, '-m', 'sphinx', *words], cwd=ROOT, capture_output=True, text=True)
    assert (0, '') == (done.returncode, done.stdout + done.stderr)
    return folder / 'html'


@pytest.mark.slow
def test_every_page_is_in_the_site_and_its_links_lead_somewhere(site):
    pages_there = {path.relative_to(site).as_posix(): path.read_text() for path in site.glob('*.html')}
    assert {path.with_suffix('.html').name for path in DOCS.glob('*.md')} <= pages_there.keys()
    for name, text in pages_there.items():
        for link in re.findall(r'(?:href|src)="([^":]*)"', text):
            file, _, anchor = link.partition('#')
            file = file.partition('?')[0] or name
            assert (site / file).exists(), (name, link)
            if anchor and file in pages_there:
                assert f'id="{anchor}"' in pages_there[file], (name, link)


@pytest.mark.slow
def test_the_reference_of_python_has_its_docstrings(site):
    text = (site / 'api.html').read_text()
    for name in ('Lease.check', 'every', 'fencing.fenced_update'):
        assert f'id="anarchon_celery.{name}"' in text
    assert 'wake up at once when the task should stop' in text


@pytest.mark.parametrize('page', EVERY, ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page):
    for link in pages.links(page):
        file, _, anchor = link.partition('#')
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), link
        assert not anchor or anchor in pages.anchors(there), link


def test_every_page_is_listed_once():
    listed = [
        name
        for block in pages.blocks(DOCS / 'index.md')
        if block.language == '{toctree}'
        for name in block.text.splitlines()
        if name and not name.startswith(':')
    ]
    assert len(listed) == len({*listed})
    assert {path.stem for path in DOCS.glob('*.md')} - {'index'} <= {*listed}


def test_every_page_can_be_reached_where_there_is_no_sidebar():
    """A code host shows no toctree: each page is linked from another one."""
    found = {link.partition('#')[0] for page in EVERY for link in pages.links(page)}
    names = {link.rpartition('/')[2] for link in found}
    assert {path.name for path in DOCS.glob('*.md')} <= names


@pytest.mark.parametrize('picture', PICTURES, ids=lambda path: path.name)
def test_pictures_can_be_read_by_all(picture):
    """Text stays text, in light and in dark; who does not see it has its description; a page shows it."""
    root = ElementTree.parse(picture).getroot()
    tags = {one.tag.partition('}')[2] for one in root.iter()}
    assert {'title', 'desc', 'text', 'style'} <= tags
    assert 'prefers-color-scheme: dark' in picture.read_text()
    docs = ''.join(page.read_text() for page in DOCS.glob('*.md'))
    assert re.search(rf'!\[[^\]]+\]\(images/{picture.name}\)', docs)
