-- release: give runs back at once, or after a delay: held ones, and claims whose publish failed.
-- Asked: runs [{job, slot, kind, token | nonce, delay, crash}]
-- Answers: [true or false]
-- Keys: job:<job>, run:<kind>:<slot>:<job> and the indexes of runs

-- Whether who gives the run back did so before, and only the answer was lost.
local function was_released(run, by_holder)
  if run.state == 'released' then return true end
  -- Or else it was not given back, but waits for its retry.
  if run.state == BUFFERED then return not by_holder or not run.retries end
  return by_holder and run.state == 'cancelled' and run.stop ~= nil
end

local function release(one)
  local run = find_run(one)
  if not run then return false end
  local by_holder, mine, from = one.token ~= nil, run.nonce == one.nonce, 'claimed'
  if by_holder then mine, from = run.token == one.token, 'running' end
  if not mine then return false end
  if run.state ~= from then return was_released(run, by_holder) end
  local changes = {state = 'released', crashes = run.crashes + (one.crash and 1 or 0)}
  -- A publish that certainly failed was no dispatch.
  if not by_holder then changes.dispatch = run.dispatch - 1 end
  if by_holder and run.stop then
    changes.state, changes.reason = 'cancelled', run.stop
    end_run(run, changes)
  elseif is_held_back(run) then
    buffer(run, changes)
  else
    put_run(run, lasting(one.delay, changes))
  end
  return true
end

local answers = {}
for place, one in ipairs(asked.runs) do answers[place] = release(one) end
return answered(answers)
