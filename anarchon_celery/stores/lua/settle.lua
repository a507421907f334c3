-- settle: end runs that were not started and will not be, and let the next ones go on.
-- Asked: runs [{job, slot, kind, outcome, reason, dispatch?}]
-- Answers: [true or false]: false of a run that is not so, and then nothing was written of it
-- Keys: job:<job>, run:<kind>:<slot>:<job> and the indexes of runs

local function settle(one)
  local run = find_run(one)
  if not run or one.dispatch and one.dispatch ~= run.dispatch then return false end
  if run.state == 'claimed' or run.state == 'queued' or run.state == 'released' then
    end_run(run, {state = one.outcome, reason = one.reason})
    return true
  end
  return run.state == one.outcome  -- this very call was carried out before
end

local answers = {}
for place, one in ipairs(asked.runs) do answers[place] = settle(one) end
return answered(answers)
