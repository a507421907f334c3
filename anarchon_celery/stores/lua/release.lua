-- release: give runs back at once, or after a delay: held ones, and claims whose publish failed.
-- Asked: runs [{job, slot, kind, token | nonce, delay, crash}]
-- Answers: [true or false]
-- Keys: run:<kind>:<slot>:<job>, deadlines

local function release(one)
  local run = find_run(one)
  if not run then return false end
  local mine, from = run.nonce == one.nonce, 'claimed'
  if one.token then mine, from = run.token == one.token, 'running' end
  if mine and run.state == 'released' then return true end
  if not mine or run.state ~= from then return false end
  local changes = {state = 'released', crashes = run.crashes + (one.crash and 1 or 0)}
  -- A publish that certainly failed was no dispatch.
  if not one.token then changes.dispatch = run.dispatch - 1 end
  put_run(run, lasting(one.delay, changes))
  return true
end

local answers = {}
for place, one in ipairs(asked.runs) do answers[place] = release(one) end
return answered(answers)
