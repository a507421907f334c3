-- register: remember jobs and schedule hashes; answer what is known of each.
-- Asked: node {id, name, kind, app?}; jobs [{job, hash, cursor?, floor?, effective?, first_seen?, supervised, paused?}]
-- Answers: [{floor?, first_seen, effective, supervised, paused?}]
-- Keys: nodes, jobs, job:<job>, run:<kind>:<slot>:<job> and the indexes of runs

-- A job no node has registered here: new, or learnt back from the memory of a node.
local function learnt(started, one)
  local first_seen = one.first_seen and math.min(one.first_seen, now) or now
  local floor = one.cursor and math.min(one.cursor, now)
  if not started then return {first_seen = first_seen, seen = now, floor = floor or false, fence = 0} end
  -- In a wiped store a message left over from before may have started it already.
  if floor and started.floor then floor = math.max(floor, started.floor) end
  return {first_seen = math.min(started.first_seen, first_seen), floor = floor or started.floor or false}
end

-- A schedule the store does not know: new, or learnt back from the memory of a node.
local function first_sight(job, schedules, one)
  -- The first one of a job counts from the job's own beginning, a later one from now on.
  local is_first = #schedules == 0
  local known = {
    hash = one.hash, since = is_first and job.first_seen or now, floor = is_first and job.floor or nil,
  }
  if one.cursor then
    if one.effective then known.since = math.min(one.effective, now) end
    known.floor = higher(known.floor, math.min(one.cursor, now))
  end
  return known
end

-- Whether the job had another schedule for long, while nobody had this one.
local function was_away(schedules, known)
  for _, other in ipairs(schedules) do
    if other.seen - known.seen > COMEBACK_AFTER then return true end
  end
end

-- Return the schedules of the job with this one among them, and this one.
local function with_schedule(job, schedules, one)
  local known, place = schedule_by(schedules, one.hash)
  if not known then
    known = first_sight(job, schedules, one)
    if #schedules >= REMEMBERED_HASHES then table.remove(schedules, 1) end
  else
    table.remove(schedules, place)
    -- What came due while the job had another schedule did not come due. Its floor stays: what was
    -- decided is so for good, also to nodes that never stopped having it.
    if not one.cursor and was_away(schedules, known) then known.since = now end
  end
  known.seen = math.max(known.seen or now, now)
  schedules[#schedules + 1] = known
  job.floor = higher(job.floor, known.floor)
  return schedules, known
end

-- Whether the store decided more for this node than it knows of, though it is the one that decided.
local function is_lost(one)
  local job = caller.identity == identity and one.floor and find_job(one.job)
  local known = job and schedule_by(schedules_of(job), one.hash)
  return known and is_below(known, one.floor)
end

local function register(one)
  local found, is_unreadable = find_job(one.job)
  if is_unreadable then redis.call('DEL', key('job', one.job)) end
  local schedules = found and schedules_of(found) or {}
  local job, changes = found or {name = one.job}, {}
  if #schedules == 0 then
    changes = learnt(found, one)
    if one.paused and not job.paused then changes.paused, changes.paused_at = one.paused, now end
    redis.call('SADD', JOBS, one.job)
  end
  if one.supervised and not job.supervised then changes.supervised = '1' end
  changes.seen = math.max(job.seen or now, now)
  put_job(job, changes)
  local floor, known = job.floor, nil
  schedules, known = with_schedule(job, schedules, one)
  if is_wiped() and is_below(known, one.floor) then raise(job, schedules, one.floor, known) end
  put_schedules(job, schedules, floor)
  if changes.paused then hold_back(job.name) end
  local effective = known.since
  -- Another node may have begun the schedule anew: to who goes on with it, it counts as before.
  if one.cursor and one.effective then effective = math.min(effective, one.effective) end
  return {
    floor = known.floor, first_seen = job.first_seen, effective = effective,
    supervised = job.supervised and true or false, paused = job.paused,
  }
end

-- Nodes come and go; who was not seen for a day is gone.
local function forget_gone()
  local found = redis.call('HGETALL', NODES)
  for at = 1, #found, 2 do
    local read, node = pcall(cjson.decode, found[at + 1])
    local seen = read and type(node) == 'table' and tonumber(node.seen)
    if not seen or seen < now - GONE_AFTER then redis.call('HDEL', NODES, found[at]) end
  end
end

forget_gone()
see(asked.node)
for _, one in ipairs(asked.jobs) do
  if is_lost(one) then
    lose_writes()
    break
  end
end
local answers = {}
for place, one in ipairs(asked.jobs) do answers[place] = register(one) end
return answered(answers)
