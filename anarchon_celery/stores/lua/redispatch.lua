-- redispatch: claim again what is past its deadline and still as it was seen; end what may not go on.
-- Asked: node, nonce; runs [{job, slot, kind, state, dispatch, deadline, max_crashes, claim_timeout, lease}]
-- Answers: [{answer, run?, wait?}]
-- Keys: job:<job>, run:<kind>:<slot>:<job> and the indexes of runs

-- What the answer was, by the state it left.
local REDISPATCHED = {
  claimed = 'won', cancelled = 'cancelled', abandoned = 'abandoned', [BUFFERED] = 'paused',
}

-- Why the run is given up, if it is.
local function hopeless(run, crashes, max_crashes)
  if crashes >= max_crashes then
    return text(crashes) .. ' worker' .. (crashes > 1 and 's' or '') .. ' died running it'
  end
  if run.unstarted >= MAX_DISPATCHES then
    return 'dispatched ' .. text(run.unstarted) .. ' times and never started'
  end
  local job = find_job(run.job)
  if not job or job.seen < now - ORPHANED_AFTER then return 'no node has had its job for a day' end
end

local function redispatch(seen)
  local run = find_run(seen)
  if run and run.nonce == asked.nonce and REDISPATCHED[run.state] then
    return {answer = REDISPATCHED[run.state], run = shown(run)}
  end
  local as_seen = run and run.state == seen.state and run.dispatch == seen.dispatch
    and run.deadline == seen.deadline
  if not as_seen or seen.deadline > now then return {answer = 'taken', run = shown(run)} end
  -- What runs is its holder's; what is queued could not start.
  local waits = run.state == 'running' or run.state == 'queued'
  local wait = waits and young_for(math.max(run.lease or 0, seen.lease))
  if wait then return {answer = 'wait', run = shown(run), wait = wait} end
  local crashes = run.crashes + (run.state == 'running' and 1 or 0)
  -- Whoever held it holds it no more, whatever becomes of it now.
  local changes = {crashes = crashes, token = false, nonce = asked.nonce}
  local reason = run.stop or hopeless(run, crashes, seen.max_crashes)
  if reason then
    -- One that was started: no late message may start it again.
    if not run.stop and crashes >= seen.max_crashes then changes.unstarted = 0 end
    changes.state, changes.reason = run.stop and 'cancelled' or 'abandoned', reason
    return {answer = changes.state, run = shown(end_run(run, changes))}
  end
  if is_held_back(run) then return {answer = 'paused', run = shown(buffer(run, changes))} end
  changes.state, changes.node, changes.claimed_at = 'claimed', asked.node, now
  changes.dispatch = run.dispatch + 1
  if run.attempt > 0 and not run.retries then changes.trigger = 'takeover' end
  return {answer = 'won', run = shown(put_run(run, lasting(seen.claim_timeout, changes)))}
end

local answers = {}
for place, seen in ipairs(asked.runs) do answers[place] = redispatch(seen) end
see_caller()
return answered(answers)
