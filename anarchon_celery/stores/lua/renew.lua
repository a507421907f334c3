-- renew: move the deadline of each lease that is still held; an expired one too, if nobody took it.
-- Asked: leases [{job, slot, kind, token}]
-- Answers: [{answer, reason?}]
-- Keys: run:<kind>:<slot>:<job>, deadlines

-- What became of a run that somebody thought was theirs, in words for the log.
local function lost_to(run, is_unreadable)
  if is_unreadable then return 'the record of the run cannot be read' end
  if not run then return 'the store does not know the run' end
  if run.state == 'running' then return 'taken over as attempt ' .. text(run.attempt) end
  return ACTIVE[run.state] and 'taken over as attempt ' .. text(run.attempt + 1) or run.state
end

local function renew(lease)
  local run, is_unreadable = find_run(lease)
  if not run or run.state ~= 'running' or run.token ~= lease.token then
    return {answer = 'lost', reason = lost_to(run, is_unreadable)}
  end
  if run.stop then return {answer = 'stop', reason = run.stop} end
  put_run(run, lasting(run.lease or 0, {}))
  return {answer = 'ok'}
end

local answers = {}
for place, lease in ipairs(asked.leases) do answers[place] = renew(lease) end
return answered(answers)
