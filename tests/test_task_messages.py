"""Which message is a run's own: the one that its header was written for, under whatever name its task has."""

from __future__ import annotations

from celery import chord, group

from tests.processes import wait_until
from tests.test_task import as_in_a_worker, lines, log, make_stage, run_worker, stage


def test_the_header_names_the_id_of_its_message(stage):
    @stage.task()
    def job(self):
        pass

    stage.dispatch()
    (message,) = stage.messages()
    assert message.headers["id"] == message.headers["anarchon"]["id"]


def test_a_header_that_was_copied_to_another_message_of_the_task_makes_no_run(stage):
    @stage.task()
    def job(self, depth=0):
        stage.log.append((depth, self.lease.job))
        if not depth:
            group(job.s(n) for n in (1, 2)).apply_async(headers=self.request.headers)
            job.apply_async((3,), headers=self.request.headers)

    key = stage.dispatch()
    stage.deliver()
    for message in stage.messages():
        assert message.headers["anarchon"]["job"] == "job"
        stage.execute(message)
    assert [(0, "job"), (1, None), (2, None), (3, None)] == sorted(stage.log)
    assert ("succeeded", 1) == (stage.run(key).state, stage.run(key).attempt)


def test_a_chord_that_copies_the_header_to_its_body_makes_one_run(make_stage, run_worker):
    stage = make_stage()

    @stage.task()
    def job(self, numbers=None):
        stage.log.append((numbers, self.lease.job))
        if numbers is None:
            header = [add.s(1), add.s(2)]
            chord(header, job.s()).apply_async(headers=self.request.headers)

    @stage.task("proj.add")
    def add(self, n):
        return n + 1

    with run_worker(stage):
        key = stage.dispatch()
        wait_until(lambda: len(stage.log) == 2)
        wait_until(lambda: stage.run(key).state == "succeeded")
    assert [(None, "job"), ([2, 3], None)] == [(sorted(n) if n else n, job) for n, job in stage.log]


def test_a_header_without_an_id_is_that_of_an_older_beat(stage):
    @stage.task()
    def job(self):
        stage.log.append(self.lease.job)

    key = stage.dispatch()
    (message,) = stage.messages()
    del message.headers["anarchon"]["id"]
    stage.execute(message)
    assert (["job"], "succeeded") == (stage.log, stage.run(key).state)


def test_a_task_that_replaces_itself_with_its_own_headers_is_replaced_by_an_ordinary_call(stage):
    # The id stays, and the task may: only how often it was replaced tells them apart.
    @stage.task()
    def job(self, again=False):
        stage.log.append((again, self.lease.job))
        if not again:
            return self.replace(job.s(True).set(headers=self.request.headers))
        return "done"

    key = stage.dispatch()
    stage.deliver()
    assert "succeeded" == stage.run(key).state
    assert "done" == stage.deliver().result
    assert [(False, "job"), (True, None)] == stage.log


# Other names --------------------------------------------------------------------------------------


def test_a_task_under_another_name_is_supervised(stage, log):
    @stage.task("proj.first_name")
    def job(self):
        stage.log.append((self.lease.job, self.request.retries))
        if not self.request.retries:
            raise self.retry(countdown=0)

    stage.app.finalize()
    stage.app.tasks["proj.job"] = stage.app.tasks["proj.first_name"]
    key = stage.dispatch()
    stage.deliver()
    stage.deliver()
    assert [("job", 0), ("job", 1)] == stage.log
    assert ("succeeded", 1) == (stage.run(key).state, stage.run(key).attempt)


def test_a_task_that_only_the_worker_knows_by_another_name_is_supervised(stage):
    """Beat sends the entry's name then; retries and what is given back have the task's own."""
    key = stage.dispatch()  # proj.job, which this beat does not know

    @stage.task("proj.first_name")
    def job(self):
        stage.log.append((self.lease.job, self.request.retries))
        if not self.request.retries:
            raise self.retry(countdown=0)

    stage.app.finalize()
    stage.app.tasks["proj.job"] = stage.app.tasks["proj.first_name"]
    (message,) = stage.messages()
    assert "proj.job" == message.headers["task"]
    message.headers["anarchon"]["v"] = 2
    stage.execute(message)
    (message,) = stage.messages()
    assert "proj.first_name" == message.headers["task"]
    message.headers["anarchon"]["v"] = 1
    stage.execute(message)
    stage.deliver()
    assert [("job", 0), ("job", 1)] == stage.log
    assert ("succeeded", 1) == (stage.run(key).state, stage.run(key).attempt)


# Celery's first protocol ---------------------------------------------------------------------------


def test_a_message_of_celerys_first_protocol_is_a_run(make_stage, run_worker):
    stage = make_stage(task_protocol=1)

    @stage.task()
    def job(self):
        stage.log.append((self.lease.job, self.request.retries))
        if not self.request.retries:
            raise self.retry(countdown=0)

    with run_worker(stage):
        key = stage.dispatch()
        wait_until(lambda: stage.run(key).state == "succeeded")
    assert ([("job", 0), ("job", 1)], 1) == (stage.log, stage.run(key).attempt)
