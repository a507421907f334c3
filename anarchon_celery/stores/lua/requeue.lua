-- requeue: let a held run wait for Celery's retry, before that is published.
-- Asked: job, slot, kind, token, delay, retries, start_timeout
-- Answers: true; false if it was lost, and then nothing was written
-- Keys: run:<kind>:<slot>:<job>, deadlines
local run = held(asked, asked.token)
if not run then return answered(already(asked, asked.token, 'queued')) end
put_run(run, lasting(asked.delay + asked.start_timeout, {
  state = 'queued', queued_at = now, not_before = now + asked.delay, retries = asked.retries, unstarted = 1,
}))
return answered(true)
