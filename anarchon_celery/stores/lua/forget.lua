-- forget: drop ended runs of a job, and take all of it for decided up to now.
-- Asked: job, limit: how many may go
-- Answers: how many went
-- Keys: job:<job>, ended:<job>, finished, run:<kind>:<slot>:<job>, runs
local job, index = find_job(asked.job), key('ended', asked.job)
if job then
  local floor, schedules = job.floor, schedules_of(job)
  raise(job, schedules, now)
  put_schedules(job, schedules, floor)
end
local members = redis.call('ZREVRANGE', index, 0, asked.limit - 1)
for _, member in ipairs(members) do
  local run = named(member)
  redis.call('ZREM', index, member)
  if is_over(run) then drop(run, member) end
end
return answered(#members)
