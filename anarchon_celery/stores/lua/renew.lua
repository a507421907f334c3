-- renew: move the deadline of each lease that is still held; an expired one too, if nobody took it.
-- Asked: leases [{job, slot, kind, token}]
-- Answers: [{answer, reason?}]
-- Keys: run:<kind>:<slot>:<job>, deadlines

-- What became of a run that somebody thought was theirs, in words for the log.
local function lost_to(state, attempt)
  if not state then return 'the store does not know the run' end
  if state == 'running' then return 'taken over as attempt ' .. text(attempt) end
  if state == BUFFERED then return 'taken back, attempt ' .. text(attempt + 1) .. ' waits' end
  return ACTIVE[state] and 'taken over as attempt ' .. text(attempt + 1) or state
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
    return {answer = 'lost', reason = lost_to(state, attempt)}
  end
  if stop then return {answer = 'stop', reason = stop} end
  local deadline = text(now + length)
  redis.call('HSET', name, 'deadline', deadline, 'span', text(length))
  redis.call('ZADD', DEADLINES, deadline, member_of(lease))
  return {answer = 'ok'}
end

local answers = {}
for place, lease in ipairs(asked.leases) do answers[place] = renew(lease) end
return answered(answers)
