-- renew: move the deadline of each lease that is still held; an expired one too, if nobody took it. A run that
-- the store has forgotten is put back.
-- Asked: leases [{job, slot, kind, token, and of one that is trusted and was not found: fence, attempt, lease,
--        owner?, task_id?, trigger, dispatch, claimed_at?, arguments?, overlap, store}]
-- Answers: {leases [{answer, reason?}], store: the identity}
-- Keys: run:<kind>:<slot>:<job>, deadlines; to put one back: jobs, job:<job>, active:<job> and the indexes of runs

-- What became of a run that somebody thought was theirs, in words for the log.
local function lost_to(state, attempt)
  if not state then return 'the store does not know the run' end
  if state == 'running' then return 'taken over as attempt ' .. text(attempt) end
  if state == BUFFERED then return 'taken back, attempt ' .. text(attempt + 1) .. ' waits' end
  return ACTIVE[state] and 'taken over as attempt ' .. text(attempt + 1) or state
end

-- What was begun beside a run before anybody told the store of it: {run}, and whether one of them has to stay.
local function others_of(lease)
  local others, is_later = {}, false
  for _, member in ipairs(lease.overlap == 'allow' and {} or oldest_first('active', lease.job)) do
    local run = member ~= member_of(lease) and find_run(named(member))
    if run and ACTIVE[run.state] then
      others[#others + 1] = run
      is_later = is_later or run.state == 'running' and run.fence > lease.fence
    end
  end
  return others, is_later
end

-- Whether its own record says nothing of the lease, though it is older than that.
local function is_forgotten(lease, run)
  if not run then return true end
  return run.fence < lease.fence and not (ENDED[run.state] and not may_start_late(run))
end

local function raise_fence(lease)
  local job = find_job(lease.job)
  put_fence(lease.job, job, text(math.max(job and job.fence or 0, lease.fence)))
end

-- Record again what only the holder knows. Old enough, the store goes by its own records.
local function put_back(lease)
  local run, is_unreadable = find_run(lease)
  if is_unreadable or not is_forgotten(lease, run) then return nil end
  if lease.store == identity then lose_writes() end
  local is_young = young_for(lease.lease)
  if not is_young and (run or any_active(lease.job)) then return nil end
  local others, is_later = others_of(lease)
  if is_later then return nil end
  raise_fence(lease)
  local is_new = not run
  run = run or {
    job = lease.job, slot = lease.slot, kind = lease.kind, trigger = lease.trigger, dispatch = lease.dispatch,
    claimed_at = lease.claimed_at, arguments = lease.arguments, crashes = 0,
  }
  put_run(run, lasting(lease.lease, {
    state = 'running', attempt = lease.attempt, fence = text(lease.fence), owner = lease.owner or false,
    token = lease.token, task_id = lease.task_id or false, lease = lease.lease, unstarted = 0, retries = false,
    started_at = math.floor(lease.fence / 1000), finished_at = false, reason = false, not_before = false,
  }), is_new)
  for _, other in ipairs(others) do
    if other.state ~= 'running' then buffer(other, {}) end
  end
  return {answer = 'ok', reason = PUT_BACK}
end

local function renew(lease)
  local name = name_of(lease)
  -- It reads only what it needs, because it comes more often than all others.
  local found = redis.pcall('HMGET', name, 'state', 'token', 'stop', 'lease', 'attempt')
  local length, attempt = whole(found[4] or 0), whole(found[5] or 0)
  if found.err or not (length and attempt) then
    pass_over(name)
    return {answer = 'lost', reason = 'the record of the run cannot be read'}
  end
  local state, token, stop = unpack(found, 1, 3)
  if state ~= 'running' or token ~= lease.token then
    return lease.fence and put_back(lease) or {answer = 'lost', reason = lost_to(state, attempt)}
  end
  if stop then return {answer = 'stop', reason = stop} end
  local deadline = text(now + length)
  redis.call('HSET', name, 'deadline', deadline, 'span', text(length))
  redis.call('ZADD', DEADLINES, deadline, member_of(lease))
  return {answer = 'ok'}
end

local answers = {}
for place, lease in ipairs(asked.leases) do answers[place] = renew(lease) end
return answered({leases = answers, store = identity})
