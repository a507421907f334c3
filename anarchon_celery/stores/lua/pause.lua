-- pause: pause a job; its scheduled runs wait, but for those that a worker has.
-- Asked: job, reason, by
-- Answers: true; false if the store has no such job
-- Keys: job:<job>, run:<kind>:<slot>:<job> and the indexes of runs
local job = find_job(asked.job)
if not job then return answered(false) end
-- One that is paused already gets the new reason, and stays paused since then.
put_job(job, {paused = asked.reason, paused_by = asked.by, paused_at = job.paused_at or now})
hold_back(job.name)
return answered(true)
