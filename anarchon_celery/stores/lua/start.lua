-- start: give the run to this delivery, under a new fence, if it may have it.
-- Asked: job, slot, kind, token, worker, task_id?, dispatch, trigger, claimed_at, lease, overlap,
--        retries, arguments?
-- Answers: {attempt, fence, trigger, store: the identity} or {why, wait?}
-- Keys: jobs, job:<job>, active:<job>, buffered:<job>, run:<kind>:<slot>:<job> and the indexes of runs

-- Whether another run of the job runs, and somebody asked for one of the two: neither waited at its entry.
local function meets_another(run)
  return any_other(run, 'active', function(kind, state)
    return state == 'running' and (is_asked_for(kind) or is_asked_for(run.kind))
  end)
end

local function one_waits(job)
  for _, member in ipairs(oldest_first('buffered', job)) do
    if named(member).kind == 'scheduled' then return true end
  end
  return false
end

-- Let a run wait whose message has come: those sent before it count no more. A worker that asks has the base
-- class. If the store did not know it by now, the run would count as over each time it was sent, and could so
-- let another one go on that waits for it, for ever.
local function let_wait(run, is_new)
  local job = find_job(run.job)
  if not job or not job.supervised then put_fence(run.job, job, text(job and job.fence or 0)) end
  buffer(run, {unstarted = 0}, is_new)
end

-- What a start meets that comes late: the pause and the overlap policy, as at its claim.
local function late(run, held_back, is_new)
  local busy = asked.overlap ~= 'allow' and has_to_wait(run)
  if not (busy or held_back) then return nil end
  if run.kind == 'scheduled' and not held_back and (asked.overlap == 'skip' or one_waits(run.job)) then
    end_run(run, {state = 'skipped', reason = 'overlap'}, is_new)
    return 'overlap'
  end
  let_wait(run, is_new)
  return held_back and 'paused' or BUFFERED
end

local function not_startable(run, is_new)
  local held_back = is_held_back(run)
  if run.state == 'claimed' or run.state == 'queued' or run.state == 'released' then
    if run.stop then return 'cancelled' end
    -- Given back by a crash: beat counts those, and may have to abandon it.
    return held_back and 'paused' or run.state == 'released' and run.crashes > 0 and run.state or nil
  end
  if run.state == BUFFERED and held_back then return 'paused' end
  if may_start_late(run) then
    return late(run, held_back, is_new)
  end
  return run.state
end

local function mint(name)
  local job = find_job(name)
  local fence = text(math.max((job and job.fence or 0) + 1, now * 1000))
  put_fence(name, job, fence)
  return fence
end

local function start(run, is_new)
  local fence = mint(run.job)
  -- Celery's own retry goes on under the same number.
  local attempt = run.attempt + (run.retries and 0 or 1)
  local trigger = run.attempt > 0 and not run.retries and 'takeover' or run.trigger
  put_run(run, lasting(asked.lease, {
    state = 'running', attempt = attempt, trigger = trigger, fence = fence, owner = asked.worker, token = asked.token,
    task_id = asked.task_id or false, lease = asked.lease, started_at = now, finished_at = false,
    reason = false, unstarted = 0, retries = false, not_before = false,
  }), is_new)
  return {attempt = attempt, fence = fence, trigger = trigger, store = identity}
end

-- Whether a run that is not known ended, and went with old history, or is one of this store's own life.
local function is_over()
  if asked.claimed_at >= born then return true end
  local is_old = created <= asked.claimed_at and asked.claimed_at < born - HISTORY_AT_LEAST
  if not is_old or asked.kind ~= 'scheduled' then return false end
  local job = find_job(asked.job)
  return job and job.floor and asked.slot <= job.floor
end

local run, is_unreadable = find_run(asked)
if is_unreadable then return answered({why = 'unreadable'}) end
if run and run.state == 'running' and run.token == asked.token then
  return answered({attempt = run.attempt, fence = text(run.fence), trigger = run.trigger, store = identity})
end
local wait = young_for(asked.lease)
if wait then return answered({why = YOUNG, wait = wait}) end
local is_new = not run
if is_new then
  if is_over() then return answered({why = 'unknown'}) end
  -- Claimed before this store came to be, or lost since: what is known of it is in the message. It comes
  -- as a late start, so that it meets the overlap policy again.
  run = {
    job = asked.job, slot = asked.slot, kind = asked.kind, state = 'published', trigger = asked.trigger,
    dispatch = asked.dispatch, unstarted = 0, attempt = 0, claimed_at = asked.claimed_at,
    arguments = asked.arguments,
  }
end
if run.retries and asked.retries < run.retries then return answered({why = EARLIER_TRY}) end
local why = not_startable(run, is_new)
if why then return answered({why = why}) end
if run.not_before and run.not_before > now then
  return answered({why = 'too early for its retry', wait = run.not_before - now})
end
if asked.overlap ~= 'allow' and meets_another(run) then
  let_wait(run, is_new)
  return answered({why = BUFFERED})
end
return answered(start(run, is_new))
