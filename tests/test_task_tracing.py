"""OpenTelemetry: what beat publishes, and publishes again, goes on as a trace in the worker."""

from __future__ import annotations

import pytest
from celery._state import _set_current_app, get_current_app
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from anarchon_celery import Scheduler
from tests.test_returning import of_another_version, rooms
from tests.test_task import as_in_a_worker, log, make_stage, stage

SENT, RUN = "apply_async/proj.job", "run/proj.job"


@pytest.fixture
def traced(stage):
    """The stage's app is instrumented, as the docs say; returns the spans that have ended."""
    exporter, provider, before = InMemorySpanExporter(), TracerProvider(), get_current_app()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    stage.app.set_current()  # the instrumentation asks for its tasks
    CeleryInstrumentor().instrument(tracer_provider=provider)
    yield exporter.get_finished_spans
    CeleryInstrumentor().uninstrument()
    _set_current_app(before)


def family(spans):
    """Of each span its name and its parent's, in the order in which they began, and how many traces."""
    names = {span.context.span_id: span.name for span in spans}
    begun = sorted(spans, key=lambda span: span.start_time)
    parents = [(span.name, span.parent and names[span.parent.span_id]) for span in begun]
    return parents, len({span.context.trace_id for span in spans})


def test_a_run_is_a_child_of_its_publication(stage, traced):
    @stage.task()
    def job(self):
        stage.log.append(self.request.headers)

    key = stage.dispatch()
    stage.deliver()
    assert ([(SENT, None), (RUN, SENT)], 1) == family(traced())
    assert {"anarchon", "traceparent"} <= {*stage.log[0]}
    assert "succeeded" == stage.run(key).state


def test_publications_that_are_due_together_are_traces_of_their_own(stage, traced, redis_url):
    @stage.task()
    def job(self):
        """Its messages stay where they are."""

    stage.app.conf.broker_url = redis_url
    stage.app.conf.beat_schedule = {f"job-{n}": {"task": job.name, "schedule": 1} for n in range(4)}
    beat = Scheduler(app=stage.app)
    stage.beats.append(beat)
    beat.tick()
    assert beat.publisher.connected().connection.transport.driver_type == "redis"
    assert ([(SENT, None)] * 4, 4) == family(traced())


def test_a_takeover_is_a_trace_of_its_own(stage, traced):
    @stage.task()
    def job(self):
        stage.log.append(self.lease.attempt)

    key = stage.dispatch()
    stage.messages()  # lost with its worker
    (beat,) = stage.beats
    stage.take_over(key, start=False)
    beat.publisher.publish(beat.schedule["job"], stage.run(key), beat.plan.jobs["job"].policy)
    stage.deliver()
    assert ([(SENT, None), (SENT, None), (RUN, SENT)], 2) == family(traced())
    again, ran = traced()[1:]
    assert again.context.span_id == ran.parent.span_id


def test_a_retry_goes_on_with_the_trace(stage, traced):
    @stage.task()
    def job(self):
        if not self.request.retries:
            raise self.retry(countdown=0)

    key = stage.dispatch()
    stage.deliver()
    stage.deliver()
    assert ([(SENT, None), (RUN, SENT), (SENT, RUN), (RUN, SENT)], 1) == family(traced())
    assert "succeeded" == stage.run(key).state


def test_a_message_that_is_given_back_goes_on_with_the_trace(stage, traced):
    stage.execute(of_another_version(stage))
    (message,) = stage.messages()
    message.headers["anarchon"]["v"] = 1
    stage.execute(message)
    assert ["ran"] == stage.log
    assert ([(SENT, None), (RUN, SENT), (SENT, RUN), (RUN, SENT)], 1) == family(traced())


def test_a_task_that_only_workers_know_is_traced_too(stage, traced):
    stage.dispatch()

    @stage.task()
    def job(self):
        pass

    stage.deliver()
    assert ([(SENT, None), (RUN, SENT)], 1) == family(traced())
