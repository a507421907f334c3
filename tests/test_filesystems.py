"""On which file systems SQLite is refused: by the table of mounts, as Linux writes it."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from anarchon_celery.errors import StoreUnusable
from anarchon_celery.stores import filesystems, open_store
from anarchon_celery.stores.filesystems import Mount, kind_at, mounts
from tests.test_cli import Desk
from tests.test_stores_sql import refused, register

TABLE = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 0:45 / /var/lib/docker/overlay2/x/merged rw,relatime shared:7 - overlay overlay rw,lowerdir=/l
41 27 0:50 / /srv/nfs rw,relatime shared:20 master:1 - nfs4 10.0.0.1:/export rw,vers=4.2,addr=10.0.0.1
42 27 0:51 / /home/me/My\\040Share rw,relatime - cifs //server/share rw,vers=3.1.1
43 27 0:52 / /mnt/c rw,noatime - 9p C:\\134 rw,aname=drvfs
44 27 0:53 / /mnt/ssh rw,nosuid,nodev,relatime - fuse.sshfs me@host:/ rw,user_id=0,group_id=0
45 27 0:54 / /mnt/pods rw,nodev - fuse.fuse-overlayfs fuse-overlayfs rw
46 27 8:17 / /mnt/usb rw,relatime - fuseblk /dev/sdb1 rw,user_id=0
47 41 254:0 /local /srv/nfs/local rw,relatime - ext4 /dev/vda rw,discard
48 27 0:55 / /mnt/cover rw - nfs host:/a rw
49 27 8:33 / /mnt/cover rw - xfs /dev/sdc1 rw
50 27 0:60 /data /app/jobs.db rw,relatime - smb3 //server/share rw
this is no line of it
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/nfs/jobs.db", "nfs4"),
        ("/srv/nfs", "nfs4"),
        ("/srv/nfs2/jobs.db", "ext4"),  # another folder, whose name begins alike
        ("/srv/nfs/local/jobs.db", "ext4"),  # a disk below a network
        ("/home/me/My Share/jobs.db", "cifs"),
        ("/mnt/c/jobs.db", "9p"),
        ("/mnt/ssh/jobs.db", "fuse.sshfs"),
        ("/mnt/pods/jobs.db", "fuse.fuse-overlayfs"),
        ("/mnt/usb/jobs.db", "fuseblk"),
        ("/mnt/cover/jobs.db", "xfs"),  # mounted over a network, at the same place
        ("/app/jobs.db", "smb3"),  # one file, as containers have them
        ("/var/lib/docker/overlay2/x/merged/jobs.db", "overlay"),
        ("/jobs.db", "ext4"),
    ],
)
def test_the_file_system_of_a_path(path, kind):
    assert kind == kind_at(path, TABLE)


def test_a_mount_below_another_one_is_known_by_its_device():
    """A folder was opened up to its parent, so that what is mounted below is not what is there."""
    hidden = TABLE + "51 27 8:49 / /mnt rw - ext4 /dev/sdd1 rw\n"
    assert "nfs4" == kind_at("/srv/nfs/jobs.db", hidden, "0:50")
    assert "ext4" == kind_at("/mnt/ssh/jobs.db", hidden, "8:49")
    assert "fuse.sshfs" == kind_at("/mnt/ssh/jobs.db", hidden, "0:99")  # which is not there: by the path


def test_lines_that_cannot_be_read_are_passed_over():
    assert [] == list(mounts("this is no line of it\n\n1 2 3 - \n"))
    assert None is kind_at("/jobs.db", "")
    assert Mount("0:51", "/home/me/My Share", "cifs") in list(mounts(TABLE))


@pytest.fixture
def mounted(tmp_path, monkeypatch):
    """Make a folder that is of some kind, by the table that is read."""

    def mount(kind):
        there = tmp_path / "there"
        there.mkdir()
        table = tmp_path / "mountinfo"
        number = os.stat(tmp_path).st_dev
        device = f"{os.major(number)}:{os.minor(number)}"
        line = f"28 27 {device} / {there} rw - {kind} somewhere rw"
        table.write_text(f"27 1 254:0 / / rw - ext4 /dev/vda rw\n{line}\n")
        monkeypatch.setattr(filesystems, "MOUNTS", table)
        return there

    return mount


FORMS = [
    "sqlite:///{}/there/jobs.db",
    "sqlite:///file:{}/there/jobs.db?uri=true",
    "sqlite:///{}/link/jobs.db",
    "sqlite:///{}/file.db",
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.s3fs"])
def test_a_file_that_machines_share_is_refused_at_the_first_use(kind, form, tmp_path, mounted):
    there = mounted(kind)
    (tmp_path / "link").symlink_to(there)
    (tmp_path / "file.db").symlink_to(there / "jobs.db")
    words = f".db is on {kind}, ", "a disk of this machine is right", "Redis"
    with closing(open_store(form.format(tmp_path))) as store, refused(StoreUnusable, *words):
        register(store, "report")
    assert [] == list(there.iterdir())


@pytest.mark.parametrize("kind", ["ext4", "overlay", "tmpfs", "fuse.fuse-overlayfs", "fuseblk", "fuse.new"])
def test_any_other_file_system_will_do(kind, mounted):
    with closing(open_store(f"sqlite:///{mounted(kind)}/jobs.db")) as store:
        register(store, "report")
        assert ["report"] == [job.name for job in store.jobs()]


def test_a_file_that_is_there_already_is_refused_too(mounted):
    path = mounted("nfs4") / "jobs.db"
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE mine (a)")
    with closing(open_store(f"sqlite:///{path}")) as store, refused(StoreUnusable, "nfs4"):
        store.jobs()


def test_where_there_is_no_such_table_nothing_is_assumed(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystems, "MOUNTS", tmp_path / "nowhere")
    with closing(open_store(f"sqlite:///{tmp_path}/jobs.db")) as store:
        assert [] == store.jobs()


@pytest.mark.parametrize(
    ("kind", "said"),
    [("sshfs", "StoreUnusable: .*/jobs.db is on fuse.sshfs, "), ("new", "StoreUnreachable: .* unable to")],
)
def test_a_real_file_system_in_user_space(kind, said, tmp_path, processes):
    """By the kernel's own table. What is made new is not refused for its name."""
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse") or unshare is None:
        pytest.skip("only root can mount one, where there are such and mounts of one's own")
    folder = tmp_path / "there"
    folder.mkdir()
    words = ["--mount", sys.executable, "-m", "tests.shared_folder", folder, kind]
    mounting = processes.start(unshare, *words, cwd=Path(__file__).parents[1])
    if mounting.wait(30) and re.search("not permitted|denied", mounting.output):
        pytest.skip("this root may not mount")
    assert re.match(said, mounting.output), mounting.output


def test_the_doctor_says_so(mounted):
    desk = Desk(anarchon_store=f"sqlite:///{mounted('nfs4')}/jobs.db")
    result = desk.run("doctor")
    desk.close()
    assert (1, 1) == (result.exit_code, len(result.output.splitlines()))
    assert "/jobs.db is on nfs4, a file system that machines share" in result.output
