-- sent: note which claims were published; where a worker was faster there is nothing to note.
-- Asked: runs [{job, slot, kind, dispatch, task_id, supervised?, countdown, start_timeout}]
-- Answers: nothing
-- Keys: job:<job>, run:<kind>:<slot>:<job> and the indexes of runs

-- Doubled for each dispatch since the last start, up to an hour.
local function start_timeout(first, dispatches)
  return math.max(first, math.min(first * 2 ^ (dispatches - 1), LONGEST_START_TIMEOUT))
end

local function is_supervised(run, one)
  if run.attempt > 0 then return true end
  if one.supervised ~= nil then return one.supervised end
  local job = find_job(run.job)
  return job and job.supervised
end

for _, one in ipairs(asked.runs) do
  local run = find_run(one)
  if run and run.state == 'claimed' and run.dispatch == one.dispatch then
    local changes = {task_id = one.task_id, queued_at = now, unstarted = run.unstarted + 1}
    if is_supervised(run, one) then
      changes.state = 'queued'
      put_run(run, lasting(one.countdown + start_timeout(one.start_timeout, changes.unstarted), changes))
    else
      changes.state = 'published'
      end_run(run, changes)
    end
  end
end
return answered(nil)
