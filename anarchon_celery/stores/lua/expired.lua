-- expired: a page of runs past their deadline, ordered by (deadline, key); and note that the node lives.
-- Asked: node {id, name, kind, app?}, limit, after? {score: deadline, job, slot, kind}
-- Answers: {runs, next_deadline?, orphaned: the jobs among them that no node has had for a day}
-- Keys: meta, nodes, jobs, job:<job>, run:<kind>:<slot>:<job> and the indexes of runs

local function cut(job)
  local floor, schedules = job.floor, schedules_of(job)
  if job.first_seen > now then put_job(job, {first_seen = now}) end
  job.floor = floor and math.min(floor, now)
  for _, known in ipairs(schedules) do
    known.since, known.floor = math.min(known.since, now), known.floor and math.min(known.floor, now)
    known.seen = math.min(known.seen, now)
  end
  put_schedules(job, schedules, floor)
end

-- The store's clock went back: cut what lies further ahead than it could be set.
local function rewind()
  for _, name in ipairs(redis.call('SMEMBERS', JOBS)) do
    local job = find_job(name)
    if job then cut(job) end
  end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', DEADLINES, '(' .. text(now), '+inf')) do
    local run = find_run(named(member))
    if run and ACTIVE[run.state] and run.span and run.deadline > now + run.span then
      -- A retry's time moves with its deadline.
      local ahead = run.deadline - (now + run.span)
      put_run(run, lasting(run.span, run.not_before and {not_before = run.not_before - ahead} or {}))
    end
  end
  for _, member in ipairs(redis.call('ZRANGE', WAITING, 0, -1)) do
    local run = find_run(named(member))
    -- How long this retry was to wait is not known any more.
    if run and run.state == BUFFERED and (run.not_before or 0) > now then put_run(run, {not_before = now}) end
  end
end

-- Return the run, if its record says what the index of deadlines says; else mend the index.
local function past_deadline(member, deadline)
  local run, is_unreadable = find_run(named(member))
  if is_unreadable then return nil end
  if not run or member_of(run) ~= member then return unlist(member) end
  if run.deadline == deadline and ACTIVE[run.state] then return run end
  index(run, member, 'claimed')
end

local function page()
  local runs, last = {}, asked.after
  while #runs < asked.limit do
    local place = place_after(DEADLINES, last)
    local found = redis.call('ZRANGE', DEADLINES, place, place + asked.limit - #runs - 1, 'WITHSCORES')
    if #found == 0 then return runs end
    for at = 1, #found, 2 do
      local deadline = tonumber(found[at + 1])
      if deadline > now then return runs end
      runs[#runs + 1] = past_deadline(found[at], deadline)
      last = place_of(found[at], found[at + 1])
    end
  end
  return runs
end

local function orphaned(runs)
  local orphans, looked_at = {}, {}
  for _, run in ipairs(runs) do
    if not looked_at[run.job] then
      looked_at[run.job] = true
      local job = find_job(run.job)
      if not job or job.seen < now - ORPHANED_AFTER then orphans[#orphans + 1] = run.job end
    end
  end
  return orphans
end

local latest = redis.call('HGET', META, 'latest')
if latest and now < (whole(latest) or 0) - 1000 then rewind() end
redis.call('HSET', META, 'latest', text(now))
see(asked.node)

local runs = page()
local orphans = orphaned(runs)
for _, run in ipairs(runs) do shown(run) end
local ahead = redis.call('ZRANGEBYSCORE', DEADLINES, '(' .. text(now), text(LATEST), 'WITHSCORES', 'LIMIT', 0, 1)
return answered({runs = runs, next_deadline = ahead[2] and math.ceil(tonumber(ahead[2])), orphaned = orphans})
