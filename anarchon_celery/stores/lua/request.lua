-- request: enter runs that somebody asks for: one for now, or those of slots that were.
-- Asked: nonce, job, by, arguments?, overlap, lease; of a backfill slots [oldest first]
-- Answers: [{answer, run?, wait?}]
-- Keys: job:<job>, active:<job>, buffered:<job>, ended:<job>, run:<kind>:<slot>:<job> and the indexes of runs

local function entered(run) return {answer = run.state == BUFFERED and BUFFERED or 'released', run = shown(run)} end

local job = find_job(asked.job)
local wait = young_for(asked.lease)

-- Why nothing may enter now.
local function refused()
  if not job then return {answer = 'unknown'} end
  return wait and {answer = 'wait', wait = wait} or nil
end

local function enter(slot, kind)
  local run = {
    job = asked.job, slot = slot, kind = kind, trigger = kind, dispatch = 0, arguments = asked.arguments,
    asked_by = asked.by, request = asked.nonce,
  }
  if asked.overlap ~= 'allow' and has_to_wait(run) then return entered(buffer(run, {}, true)) end
  return entered(put_run(run, lasting(0, {state = 'released'}), true))
end

-- Return the run for now that this very request entered, if its answer was lost.
local function entered_before()
  local since = text(ASKED_AGAIN_WITHIN - now)
  for what in pairs(INDEXES) do
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', key(what, asked.job), '-inf', since)) do
      local one = named(member)
      local is_manual = one.kind == MANUAL and one.job == asked.job
      if is_manual and server.pcall('HGET', name_of(one), 'request') == asked.nonce then return find_run(one) end
    end
  end
end

-- Of two in one millisecond the later takes the next one that is free.
local function trigger()
  local before = entered_before()
  if before then return entered(before) end
  local one = {job = asked.job, slot = now, kind = MANUAL}
  if refused() then return refused() end
  while redis.call('EXISTS', name_of(one)) == 1 do one.slot = one.slot + 1 end
  return enter(one.slot, MANUAL)
end

local function backfill(slot)
  local run, is_unreadable = find_run({job = asked.job, slot = slot, kind = BACKFILL})
  if run and run.request == asked.nonce then return entered(run) end
  if run or is_unreadable then return {answer = 'taken', run = shown(run)} end
  if refused() then return refused() end
  if slot > now then return {answer = 'early', wait = slot - now} end
  return enter(slot, BACKFILL)
end

local answers = {}
for place, slot in ipairs(asked.slots or {}) do answers[place] = backfill(slot) end
if not asked.slots then answers[1] = trigger() end
return answered(answers)
