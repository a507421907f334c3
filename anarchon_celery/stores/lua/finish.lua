-- finish: end a run that is still held, and let the next one go on.
-- Asked: job, slot, kind, token, outcome, reason?
-- Answers: true; false if it was lost, and then nothing was written
-- Keys: job:<job>, run:<kind>:<slot>:<job> and the indexes of runs
local run = held(asked, asked.token)
if not run then return answered((already(asked, asked.token, asked.outcome))) end
end_run(run, {state = asked.outcome, reason = asked.reason})
return answered(true)
