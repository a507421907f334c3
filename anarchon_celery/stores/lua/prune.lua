-- prune: forget ended runs that finished too long ago, fold skips that follow each other, then forget those
-- beyond the newest of their job.
-- Asked: history, most, limit: how many may go, look: how many ended runs are looked at to be folded,
--        after?: a place: behind which one, is_last?: whether no such call follows
-- Answers: {gone: how many, after?: where the next call begins to look, if there is more}
-- Keys: jobs, job:<job>, active:<job>, buffered:<job>, ended:<job>, finished, run:<kind>:<slot>:<job>, runs
local left = asked.limit

-- All floors are raised over what is gone, so that no node finds the way free again.
local function raise_floors(run, slot)
  if run.kind ~= 'scheduled' or slot > now then return end
  local job = find_job(run.job)
  if not job then return end
  local floor, schedules = job.floor, schedules_of(job)
  raise(job, schedules, slot)
  put_schedules(job, schedules, floor)
end

local function forget(index, members)
  for _, member in ipairs(members) do
    local run = named(member)
    redis.call('ZREM', index, member)
    if is_over(run) then
      raise_floors(run, run.slot)
      drop(run, member)
    end
  end
  left = left - #members
end

-- Fold -------------------------------------------------------------------------------------------

local fold_until = now - FOLD_AFTER

-- Return what folding takes of a run that was skipped some time ago.
local function skip_of(one)
  local found = redis.pcall('HMGET', name_of(one), 'state', 'finished_at', 'reason', 'until', 'count')
  local finished_at = found[2] and whole(found[2])
  if found.err or found[1] ~= 'skipped' or not finished_at or finished_at > fold_until then return nil end
  return {
    job = one.job, slot = one.slot, kind = one.kind, state = found[1], finished_at = finished_at,
    reason = found[3], last = found[4] and whole(found[4]) or one.slot, count = found[5] and whole(found[5]) or 1,
  }
end

-- Return the ended run of this job's schedule before this one, as far as it is near; and its name in the indexes.
local function ended_before(one, member)
  local index, step = key('ended', one.job), 20
  local place = redis.call('ZRANK', index, member)
  while place do
    local members = redis.call('ZRANGE', index, place + 1, place + step)
    for _, other in ipairs(members) do
      local found = named(other)
      if found.job == one.job and found.kind == 'scheduled' then return found end
    end
    place = #members == step and place + step
  end
end

-- Whether a run that goes on, or waits, keeps two of its job apart.
local function is_between(first, one)
  for _, what in ipairs({'active', 'buffered'}) do
    local newer, older = '(' .. text(0 - one.slot), '(' .. text(0 - first.slot)
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', key(what, one.job), newer, older)) do
      if named(member).kind == 'scheduled' then return true end
    end
  end
  return false
end

-- Up to where each schedule of a job is decided that a node may still have: no floor of those is raised.
local bounds = {}
local function decided_by_all(name)
  if bounds[name] == nil then
    local job = find_job(name)
    bounds[name] = job and now or false
    for _, known in ipairs(job and schedules_of(job) or {}) do
      if now - known.seen <= COMEBACK_AFTER then
        bounds[name] = math.min(bounds[name], math.max(known.since, known.floor or 0))
      end
    end
  end
  return bounds[name]
end

-- Let the skip before this one stand for both, if there is one.
local function fold(member)
  local one = named(member)
  local run = one.kind == 'scheduled' and skip_of(one)
  local before = run and ended_before(one, member)
  local first = before and skip_of(before)
  if not first or first.reason ~= run.reason or is_between(first, run) then return end
  local bound, last = decided_by_all(run.job), math.max(first.last, run.last)
  if not bound or last > bound then return end
  raise_floors(run, last)
  drop(run, member)
  put_run(first, {
    ['until'] = last, count = first.count + run.count, finished_at = math.max(first.finished_at, run.finished_at),
  })
  left = left - 1
end

-- Look at a page of ended runs, the oldest end first; return where the next one begins, if there is more.
local function fold_page()
  local last, place = asked.after, place_after(FINISHED, asked.after)
  local found = redis.call('ZRANGE', FINISHED, place, place + asked.look - 1, 'WITHSCORES')
  for at = 1, #found, 2 do
    local finished_at = tonumber(found[at + 1])
    if finished_at > fold_until then return nil end
    if left <= 0 then return last end
    fold(found[at])
    last = place_of(found[at], found[at + 1])
  end
  return #found == 2 * asked.look and last or nil
end

-- ------------------------------------------------------------------------------------------------

local function forget_surplus()
  for _, job in ipairs(redis.call('SMEMBERS', JOBS)) do
    if left <= 0 then break end
    local index = key('ended', job)
    forget(index, redis.call('ZRANGE', index, asked.most, asked.most + left - 1))
  end
end

local oldest = '(' .. text(now - asked.history)
forget(FINISHED, redis.call('ZRANGEBYSCORE', FINISHED, '-inf', oldest, 'LIMIT', 0, left))
local after = fold_page()
-- What is still to be folded counts as one.
if not after or asked.is_last then forget_surplus() end
return answered({gone = asked.limit - left, after = after})
