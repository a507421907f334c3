-- prune: forget ended runs beyond the newest of their job, then those that finished too long ago.
-- Asked: history, most, limit
-- Answers: how many were forgotten
-- Keys: jobs, job:<job>, ended:<job>, finished, run:<kind>:<slot>:<job>, runs
local left = asked.limit

-- All floors are raised over a forgotten run, so that no node finds the way free again.
local function raise_floors(run)
  if run.kind ~= 'scheduled' or run.slot > now then return end
  local job = find_job(run.job)
  if not job then return end
  local floor, schedules = job.floor, schedules_of(job)
  raise(job, schedules, run.slot)
  put_schedules(job, schedules, floor)
end

local function forget(members)
  for _, member in ipairs(members) do
    local run = named(member)
    raise_floors(run)
    redis.call('DEL', name_of(run))
    redis.call('ZREM', RUNS, member)
    redis.call('ZREM', FINISHED, member)
    redis.call('ZREM', key('ended', run.job), member)
  end
  left = left - #members
end

-- The surplus first: what is too old counts among the newest as long as it is there.
for _, job in ipairs(redis.call('SMEMBERS', JOBS)) do
  if left <= 0 then break end
  forget(redis.call('ZRANGE', key('ended', job), asked.most, asked.most + left - 1))
end
local oldest = '(' .. text(now - asked.history)
forget(redis.call('ZRANGEBYSCORE', FINISHED, '-inf', oldest, 'LIMIT', 0, left))
return answered(asked.limit - left)
