-- resume: let a paused job go on, beginning with the oldest run that waits.
-- Asked: job
-- Answers: true; false if it was not paused
-- Keys: job:<job>, run:<kind>:<slot>:<job> and the indexes of runs
local job = find_job(asked.job)
if not (job and job.paused) then return answered(false) end
put_job(job, {paused = false, paused_by = false, paused_at = false})
promote(job.name)
return answered(true)
