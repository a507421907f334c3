-- claim: decide the slots of each job, in their order; of all nodes that offer one, one wins.
-- Asked: node, nonce; offers [{job, slots [oldest first], late, leap? {first, last, count}, overlap,
--        claim_timeout}]
-- Answers: [{floor?, claims [{answer, wait?, run?}], missed?}]
-- Keys: job:<job>, active:<job>, run:scheduled:<slot>:<job> and the indexes of runs

-- The slot is decided: by this very call if its answer was lost, else by somebody else.
local function met_again(run)
  local answer = 'taken'
  if run and run.nonce == asked.nonce then
    if run.state == 'claimed' then answer = 'won' end
    if run.state == 'skipped' and run.reason == 'overlap' then answer = 'overlap' end
  end
  return {answer = answer, run = shown(run)}
end

local function claim_slot(offer, job, slot, trigger)
  local new = {job = job.name, slot = slot, kind = 'scheduled'}
  local run, is_unreadable = find_run(new)
  if run or is_unreadable or (job.floor and slot <= job.floor) then return met_again(run) end
  if slot > now then return {answer = 'early', wait = slot - now} end
  job.floor = slot
  new.node, new.nonce, new.claimed_at, new.trigger = asked.node, asked.nonce, now, trigger
  if job.active > 0 and offer.overlap == 'skip' then
    put_run(new, {state = 'skipped', dispatch = 0, finished_at = now, reason = 'overlap'}, true)
    return {answer = 'overlap', run = new}
  end
  job.active = job.active + 1
  return {answer = 'won', run = put_run(new, lasting(offer.claim_timeout, {state = 'claimed'}), true)}
end

-- Whether others decided part of what this node wants to pass over: it must look again.
local function is_out_of_date(leap, job)
  return leap and job.floor and job.floor >= leap.first and job.floor < leap.last
end

-- Write the one record of the slots that nobody will run, and raise the floor over them.
local function record_leap(leap, job)
  if not leap or leap.last > now then return nil end
  local run, is_unreadable = find_run({job = job.name, slot = leap.first, kind = 'scheduled'})
  if job.floor and job.floor >= leap.last then
    -- By this very call, if its answer was lost.
    return run and run.state == 'missed' and run.nonce == asked.nonce and shown(run) or nil
  end
  job.floor = leap.last
  if run or is_unreadable then return nil end
  return put_run({job = job.name, slot = leap.first, kind = 'scheduled'}, {
    state = 'missed', trigger = 'catch-up', dispatch = 0, node = asked.node, nonce = asked.nonce,
    finished_at = now, reason = 'came due while no node was looking',
    ['until'] = leap.last, count = leap.count,
  }, true)
end

local function all(slots, answer)
  local claims = {}
  for place = 1, #slots do claims[place] = {answer = answer} end
  return claims
end

local function claim_job(offer)
  local job = find_job(offer.job)
  if not (job and job.hashes) then return {claims = all(offer.slots, 'unknown')} end
  if is_out_of_date(offer.leap, job) then return {floor = job.floor, claims = all(offer.slots, 'wait')} end
  local floor = job.floor
  local missed = record_leap(offer.leap, job)
  job.active = redis.call('ZCARD', key('active', job.name))
  local claims = {}
  for place, slot in ipairs(offer.slots) do
    claims[place] = claim_slot(offer, job, slot, place <= offer.late and 'catch-up' or 'scheduled')
  end
  if job.floor ~= floor then put_job(job, {floor = job.floor}) end
  return {floor = job.floor, claims = claims, missed = missed}
end

local answers = {}
for place, offer in ipairs(asked.offers) do answers[place] = claim_job(offer) end
return answered(answers)
