-- register: remember jobs and schedule hashes; answer what is known of each.
-- Asked: node {id, name, kind}; jobs [{job, hash, cursor?, first_seen?, supervised, paused?}]
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

-- Return from when on a schedule hash counts, and whether it is new; remember it if so.
local function effective_since(hashes, hash, first_seen)
  for _, known in ipairs(hashes) do
    if known[1] == hash then return known[2], false end
  end
  -- The first hash of a job counts from the job's own beginning, a later one from now on.
  local since = #hashes > 0 and now or first_seen
  hashes[#hashes + 1] = {hash, since}
  if #hashes > REMEMBERED_HASHES then table.remove(hashes, 1) end
  return since, true
end

local function register(one)
  local found, is_unreadable = find_job(one.job)
  if is_unreadable then redis.call('DEL', key('job', one.job)) end
  local hashes = found and hashes_of(found) or {}
  local job, changes = found or {name = one.job}, {}
  if #hashes == 0 then
    changes = learnt(found, one)
    if one.paused and not job.paused then changes.paused, changes.paused_at = one.paused, now end
    redis.call('SADD', JOBS, one.job)
  end
  local effective, is_new = effective_since(hashes, one.hash, changes.first_seen or job.first_seen)
  if is_new then changes.hashes = cjson.encode(hashes) end
  if one.supervised and not job.supervised then changes.supervised = '1' end
  changes.seen = math.max(job.seen or now, now)
  put_job(job, changes)
  if changes.paused then hold_back(job.name) end
  return {
    floor = job.floor, first_seen = job.first_seen, effective = effective,
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
local answers = {}
for place, one in ipairs(asked.jobs) do answers[place] = register(one) end
return answered(answers)
