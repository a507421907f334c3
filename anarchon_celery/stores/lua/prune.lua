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

-- Whether the record may go: one that somebody brought back to life may not.
local function is_over(run)
  local state = server.pcall('HGET', name_of(run), 'state')
  return not (ACTIVE[state] or state == BUFFERED)
end

local function forget(index, members)
  for _, member in ipairs(members) do
    local run = named(member)
    redis.call('ZREM', index, member)
    if is_over(run) then
      raise_floors(run)
      redis.call('DEL', name_of(run))
      redis.call('ZREM', RUNS, member)
      redis.call('ZREM', FINISHED, member)
      redis.call('ZREM', key('ended', run.job), member)
    end
  end
  left = left - #members
end

-- The surplus first: what is too old counts among the newest as long as it is there.
for _, job in ipairs(redis.call('SMEMBERS', JOBS)) do
  if left <= 0 then break end
  local index = key('ended', job)
  forget(index, redis.call('ZRANGE', index, asked.most, asked.most + left - 1))
end
local oldest = '(' .. text(now - asked.history)
forget(FINISHED, redis.call('ZRANGEBYSCORE', FINISHED, '-inf', oldest, 'LIMIT', 0, left))
return answered(asked.limit - left)
