-- requeue: let a held run wait for Celery's retry, before that is published; one that is to stop ends.
-- Asked: job, slot, kind, token, delay, retries, start_timeout
-- Answers: true; false if it was lost, and then nothing was written, or if it ended
-- Keys: job:<job>, run:<kind>:<slot>:<job> and the indexes of runs
local run = held(asked, asked.token)
if not run then
  local is_done, waiting = already(asked, asked.token, 'queued', BUFFERED)
  return answered(is_done and waiting.retries ~= nil)
end
if run.stop then
  end_run(run, {state = 'cancelled', reason = run.stop})
  return answered(false)
end
local changes = {
  state = 'queued', queued_at = now, not_before = now + asked.delay, retries = asked.retries, unstarted = 1,
}
if is_held_back(run) then
  buffer(run, changes)
else
  put_run(run, lasting(asked.delay + asked.start_timeout, changes))
end
return answered(true)
