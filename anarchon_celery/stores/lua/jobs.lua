-- jobs: all jobs the store knows.
-- Answers: [{name, hashes [[hash, since, floor or null]], first_seen, seen, floor?, fence, supervised,
--          paused?, paused_by?, paused_at?}]
-- Keys: jobs, job:<job>
local jobs = {}
for _, name in ipairs(redis.call('SMEMBERS', JOBS)) do
  local job = find_job(name)
  if job then
    job.hashes, job.fence = as_hashes(schedules_of(job)), text(job.fence)
    jobs[#jobs + 1] = job
  end
end
return answered(jobs)
