-- claim: decide the slots of each job, in their order; of all nodes that offer one, one wins.
-- Asked: node, nonce; offers [{job, slots [oldest first], late, leap? {first, last, count}, overlap,
--        catch_up, chained, after?, claim_timeout}]
-- Answers: [{floor?, claims [{answer, wait?, run?}], missed?, ended [run]}]
-- Keys: job:<job>, active:<job>, buffered:<job>, run:scheduled:<slot>:<job> and the indexes of runs

-- The answers that go with a record of this call's own.
local DECIDED = names('won', 'overlap', 'paused', 'cancelled')

local function all(slots, answer)
  local claims = {}
  for place = 1, #slots do claims[place] = {answer = answer} end
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

-- The leap --------------------------------------------------------------------------------------

-- Whether others decided part of what this node wants to pass over: it must look again.
local function is_out_of_date(leap, job)
  return leap and job.floor and job.floor >= leap.first and job.floor < leap.last
end

-- The record of the leap, if this very call wrote it and its answer was lost.
local function missed_before(leap, job)
  local run = leap and find_run({job = job.name, slot = leap.first, kind = 'scheduled'})
  return run and run.state == 'missed' and run.nonce == asked.nonce and run or nil
end

-- Write the one record of the slots that nobody will run, and raise the floor over them.
local function record_leap(leap, job)
  if not leap or leap.last > now then return nil end
  if job.floor and job.floor >= leap.last then return missed_before(leap, job) end
  local run, is_unreadable = find_run({job = job.name, slot = leap.first, kind = 'scheduled'})
  job.floor = leap.last
  if run or is_unreadable then return nil end
  return put_run({job = job.name, slot = leap.first, kind = 'scheduled'}, {
    state = 'missed', trigger = 'catch-up', dispatch = 0, node = asked.node, nonce = asked.nonce,
    finished_at = now, reason = 'came due while no node was looking',
    ['until'] = leap.last, count = leap.count,
  }, true)
end

-- One slot after the other ----------------------------------------------------------------------
-- `deciding` is what is known from one slot of an offer to the next: {offer, job, ended: runs, has_to_wait}

local function end_earlier(deciding, run, state, reason)
  deciding.ended[#deciding.ended + 1] = end_for_another(run, {state = state, reason = reason})
end

-- One slot of a job waits, the newest: it takes the place of an older one.
local function displace(deciding)
  for _, member in ipairs(oldest_first('buffered', deciding.job.name)) do
    local one = named(member)
    local run = one.kind == 'scheduled' and find_run(one)
    if run and run.state == BUFFERED then end_earlier(deciding, run, 'skipped', 'overlap') end
  end
end

-- Under `cancel`: ask what runs to stop, and end what was not started.
local function overtake(deciding)
  for _, member in ipairs(oldest_first('active', deciding.job.name)) do
    local run = find_run(named(member))
    if run and run.state == 'running' then
      if not run.stop then put_run(run, {stop = OVERTAKEN}) end
    elseif run and ACTIVE[run.state] then
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
  if busy and offer.overlap == 'skip' then return skip(new, 'overlap') end
  if busy then
    displace(deciding)
    if offer.overlap == 'cancel' then overtake(deciding) end
    if any_active(new.job) then return {answer = 'overlap', run = buffer(new, {dispatch = 0}, true)} end
  end
  return {answer = 'won', run = put_run(new, lasting(offer.claim_timeout, {state = 'claimed'}), true)}
end

local function decide(deciding, slot, is_late)
  local offer, job = deciding.offer, deciding.job
  local new = {job = job.name, slot = slot, kind = 'scheduled'}
  local run, is_unreadable = find_run(new)
  if run or is_unreadable or (job.floor and slot <= job.floor) then return met_again(run) end
  if slot > now then return {answer = 'early', wait = slot - now} end
  local busy = not job.paused and is_busy(offer)
  -- Whatever is behind a late slot that waits is late too.
  if is_late and busy and offer.catch_up == 'all' then deciding.has_to_wait = true end
  if deciding.has_to_wait then return {answer = 'wait'} end
  job.floor = slot
  new.node, new.nonce, new.claimed_at = asked.node, asked.nonce, now
  new.trigger = is_late and 'catch-up' or 'scheduled'
  if job.paused then return skip(new, 'paused') end
  return by_policy(deciding, new, busy)
end

-- One offer after the other ---------------------------------------------------------------------

-- The slots were computed from another floor: by this very call if its answer was lost, else too early.
local function chain_is_broken(offer, job)
  local claims = {}
  for place, slot in ipairs(offer.slots) do
    local run = find_run({job = job.name, slot = slot, kind = 'scheduled'})
    claims[place] = run and run.nonce == asked.nonce and met_again(run) or {answer = 'wait'}
  end
  return {floor = job.floor, claims = claims, missed = missed_before(offer.leap, job), ended = {}}
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

local function claim_job(offer)
  local job = find_job(offer.job)
  if not (job and job.hashes) then return {claims = all(offer.slots, 'unknown')} end
  if offer.chained and job.floor ~= offer.after then return chain_is_broken(offer, job) end
  if is_out_of_date(offer.leap, job) then return {floor = job.floor, claims = all(offer.slots, 'wait')} end
  local floor = job.floor
  local missed = record_leap(offer.leap, job)
  local deciding, claims = {offer = offer, job = job, ended = {}, has_to_wait = false}, {}
  for place, slot in ipairs(offer.slots) do claims[place] = decide(deciding, slot, place <= offer.late) end
  if job.floor ~= floor then put_job(job, {floor = job.floor}) end
  return {floor = job.floor, claims = claims, missed = missed, ended = of_others(deciding.ended, claims)}
end

local answers = {}
for place, offer in ipairs(asked.offers) do
  local answer = claim_job(offer)
  for _, claim in ipairs(answer.claims) do shown(claim.run) end
  for _, run in ipairs(answer.ended or {}) do shown(run) end
  shown(answer.missed)
  answers[place] = answer
end
return answered(answers)
