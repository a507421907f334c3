-- claim: decide the slots of each job, in their order; of all nodes that offer one, one wins.
-- Asked: node, nonce; offers [{job, slots [oldest first], hash?, late, leap? {first, last, count}, overlap,
--        catch_up, chained, after?, claim_timeout, lease, floor?}]
-- Answers: [{floor?, claims [{answer, wait?, run?}], missed?, ended [run]}]
-- Keys: job:<job>, active:<job>, buffered:<job>, run:scheduled:<slot>:<job> and the indexes of runs

-- The answers that go with a record of this call's own.
local DECIDED = names('won', 'overlap', 'paused', 'cancelled')

local function all(slots, answer, wait)
  local claims = {}
  for place = 1, #slots do claims[place] = {answer = answer, wait = wait} end
  return claims
end

-- A slot that is decided already ----------------------------------------------------------------

-- What a call was answered that decided this run, as far as its record still tells.
local function answer_before(run)
  if run.state == 'claimed' then return 'won' end
  if run.state == 'skipped' and (run.reason == 'overlap' or run.reason == 'paused') then return run.reason end
  local was_buffered = run.dispatch == 0
  if was_buffered and (run.state == BUFFERED or run.state == 'released' or run.reason == OVERTAKEN) then
    return 'overlap'
  end
  if run.reason == OVERTAKEN then return 'cancelled' end
  -- Won, but its job was paused before anybody could learn of it.
  return run.state == BUFFERED and 'paused' or 'taken'
end

-- The slot is decided: by this very call if its answer was lost, else by somebody else.
local function met_again(run)
  local is_own = run and run.nonce == asked.nonce
  return {answer = is_own and answer_before(run) or 'taken', run = run}
end

-- What is known from one slot of an offer to the next --------------------------------------------
-- `deciding`: {offer, job, schedules, schedule? (the offer's), bound (whose floor counts: the schedule's, or
-- the job's where none is named or known), ended: runs, has_to_wait}

local function new_deciding(offer, job, schedules)
  local schedule = schedule_by(schedules, offer.hash)
  return {
    offer = offer, job = job, schedules = schedules, schedule = schedule, bound = schedule or job, ended = {},
    has_to_wait = false,
  }
end

local function raise_to(deciding, slot) raise(deciding.job, deciding.schedules, slot, deciding.schedule) end

-- The leap --------------------------------------------------------------------------------------

-- Whether others decided part of what this node wants to pass over: it must look again.
local function is_out_of_date(leap, floor)
  return leap and floor and floor >= leap.first and floor < leap.last
end

-- Where its record may stand: at its first slot, beside that if it has a run.
local KINDS_OF_LEAP = {'scheduled', LEAPT}

-- The record of the leap, if this very call wrote it and its answer was lost.
local function missed_before(offer)
  for _, kind in ipairs(offer.leap and KINDS_OF_LEAP or {}) do
    local run = find_run({job = offer.job, slot = offer.leap.first, kind = kind})
    if run and run.state == 'missed' and run.nonce == asked.nonce then return run end
  end
end

local function is_free(one)
  local run, is_unreadable = find_run(one)
  return not run and not is_unreadable
end

local function free_for_leap(deciding)
  local leap, name = deciding.offer.leap, deciding.job.name
  local at_first = {job = name, slot = leap.first, kind = 'scheduled'}
  if is_free(at_first) then return at_first end
  if #deciding.schedules == 1 then
    -- Of one schedule, up to the last one: then all were decided before the clock went back.
    local first = find_run(at_first) or {}
    local is_decided = (first['until'] or leap.first) >= leap.last
    if is_decided or not is_free({job = name, slot = leap.last, kind = 'scheduled'}) then return nil end
  end
  local beside = {job = name, slot = leap.first, kind = LEAPT}
  return is_free(beside) and beside or nil
end

-- Write the one record of the slots that nobody will run, and raise the floor over them.
local function record_leap(deciding)
  local offer, leap, floor = deciding.offer, deciding.offer.leap, deciding.bound.floor
  if not leap or leap.last > now then return nil end
  if floor and floor >= leap.last then return missed_before(offer) end
  raise_to(deciding, leap.last)
  local record = free_for_leap(deciding)
  return record and put_run(record, {
    state = 'missed', trigger = 'catch-up', dispatch = 0, node = asked.node, nonce = asked.nonce,
    finished_at = now, reason = 'came due while no node was looking',
    ['until'] = leap.last, count = leap.count,
  }, true)
end

-- One slot after the other ----------------------------------------------------------------------

local function end_earlier(deciding, run, state, reason)
  deciding.ended[#deciding.ended + 1] = end_for_another(run, {state = state, reason = reason})
end

-- Whether a later slot, of another schedule, has the place that this one would take.
local function is_overtaken(offer, slot)
  for _, what in ipairs(offer.overlap == 'cancel' and {'buffered', 'active'} or {'buffered'}) do
    for _, member in ipairs(oldest_first(what, offer.job)) do
      local one = named(member)
      local run = one.kind == 'scheduled' and one.slot > slot and find_run(one)
      if run and what_is(run.state) == what then return true end
    end
  end
  return false
end

-- One slot of a job waits, the newest: it takes the place of an older one.
local function displace(deciding)
  for _, member in ipairs(oldest_first('buffered', deciding.job.name)) do
    local one = named(member)
    local run = one.kind == 'scheduled' and find_run(one)
    if run and run.state == BUFFERED then end_earlier(deciding, run, 'skipped', 'overlap') end
  end
end

-- Under `cancel`: ask what runs to stop, and end what was not started, but for what somebody asked for.
local function overtake(deciding)
  for _, member in ipairs(oldest_first('active', deciding.job.name)) do
    local run = find_run(named(member))
    if run and run.state == 'running' then
      if not run.stop then put_run(run, {stop = OVERTAKEN}) end
    elseif run and ACTIVE[run.state] and run.kind == 'scheduled' then
      end_earlier(deciding, run, 'cancelled', OVERTAKEN)
    end
  end
end

-- Whether the policy has to be asked. One that waits for nothing, after an edit, goes on first.
local function is_busy(offer)
  local allowed = offer.overlap == 'allow'
  promote(offer.job, allowed)
  return not allowed and any_active(offer.job)
end

local function skip(new, why)
  put_run(new, {state = 'skipped', dispatch = 0, finished_at = now, reason = why}, true)
  return {answer = why, run = new}
end

local function by_policy(deciding, new, busy)
  local offer = deciding.offer
  if busy and (offer.overlap == 'skip' or is_overtaken(offer, new.slot)) then return skip(new, 'overlap') end
  if busy then
    displace(deciding)
    if offer.overlap == 'cancel' then overtake(deciding) end
    if any_active(new.job) then return {answer = 'overlap', run = buffer(new, {dispatch = 0}, true)} end
  end
  return {answer = 'won', run = put_run(new, lasting(offer.claim_timeout, {state = 'claimed'}), true)}
end

local function decide(deciding, slot, is_late)
  local offer, job, floor = deciding.offer, deciding.job, deciding.bound.floor
  local new = {job = job.name, slot = slot, kind = 'scheduled'}
  local run, is_unreadable = find_run(new)
  if run or is_unreadable or (floor and slot <= floor) then
    if not deciding.has_to_wait and slot <= now then raise_to(deciding, slot) end
    return met_again(run)
  end
  if slot > now then return {answer = 'early', wait = slot - now} end
  local busy = not job.paused and is_busy(offer)
  -- Whatever is behind a late slot that waits is late too.
  if is_late and busy and offer.catch_up == 'all' then deciding.has_to_wait = true end
  if deciding.has_to_wait then return {answer = 'wait'} end
  raise_to(deciding, slot)
  new.node, new.nonce, new.claimed_at = asked.node, asked.nonce, now
  new.trigger = is_late and 'catch-up' or 'scheduled'
  if job.paused then return skip(new, 'paused') end
  return by_policy(deciding, new, busy)
end

-- One offer after the other ---------------------------------------------------------------------

-- The slots were computed from another floor: by this very call if its answer was lost, else too early.
local function chain_is_broken(offer, floor)
  local claims = {}
  for place, slot in ipairs(offer.slots) do
    local run = find_run({job = offer.job, slot = slot, kind = 'scheduled'})
    claims[place] = run and run.nonce == asked.nonce and met_again(run) or {answer = 'wait'}
  end
  return {floor = floor, claims = claims, missed = missed_before(offer), ended = {}}
end

-- Show the runs as they are after all slots of the call; return those of other calls that it ended.
local function of_others(ended, claims)
  local own, others = {}, {}
  for _, claim in ipairs(claims) do
    claim.run = claim.run and changed[name_of(claim.run)] or claim.run
    if claim.answer == 'won' and claim.run.state == 'cancelled' then claim.answer = 'cancelled' end
    if DECIDED[claim.answer] then own[name_of(claim.run)] = true end
  end
  for _, run in ipairs(ended) do
    if not own[name_of(run)] then others[#others + 1] = run end
  end
  return others
end

-- Whether a node has to register first: the job or its schedule, unless it may have been forgotten.
local function is_unknown(schedules, hash)
  if not hash or schedule_by(schedules, hash) then return #schedules == 0 end
  return #schedules < REMEMBERED_HASHES
end

-- Each job is read once, and kept as it is changed.
local jobs = {}
local function job_of(offer)
  if jobs[offer.job] == nil then jobs[offer.job] = find_job(offer.job) or false end
  return jobs[offer.job] or nil
end

local function claim_job(offer)
  local job = job_of(offer)
  local schedules = job and schedules_of(job)
  if not job or is_unknown(schedules, offer.hash) then return {claims = all(offer.slots, 'unknown')} end
  local deciding, before, claims = new_deciding(offer, job, schedules), job.floor, {}
  local floor = deciding.bound.floor
  local wait = young_for(offer.lease)
  if wait then return {floor = floor, claims = all(offer.slots, 'wait', wait)} end
  if offer.chained and floor ~= offer.after then return chain_is_broken(offer, floor) end
  if is_out_of_date(offer.leap, floor) then return {floor = floor, claims = all(offer.slots, 'wait')} end
  local missed = record_leap(deciding)
  for place, slot in ipairs(offer.slots) do claims[place] = decide(deciding, slot, place <= offer.late) end
  put_schedules(job, schedules, before)
  local others = of_others(deciding.ended, claims)
  return {floor = deciding.bound.floor, claims = claims, missed = missed, ended = others}
end

-- Whether the store lost what it had decided for the node that offers.
local function is_lost(offer)
  local job = offer.floor and job_of(offer)
  return job and is_below(schedule_by(schedules_of(job), offer.hash) or job, offer.floor)
end

for _, offer in ipairs(asked.offers) do
  if is_lost(offer) then
    lose_writes()
    break
  end
end

local answers = {}
for place, offer in ipairs(asked.offers) do
  local answer = claim_job(offer)
  for _, claim in ipairs(answer.claims) do shown(claim.run) end
  for _, run in ipairs(answer.ended or {}) do shown(run) end
  shown(answer.missed)
  answers[place] = answer
end
see_caller()
return answered(answers)
