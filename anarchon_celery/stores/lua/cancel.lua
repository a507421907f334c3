-- cancel: have a run stop: its holder hears it at the next heartbeat, one without a holder ends at once.
-- Asked: job, slot, kind, reason
-- Answers: the run as it is then; nothing if there is none
-- Keys: job:<job>, run:<kind>:<slot>:<job> and the indexes of runs
local run = find_run(asked)
if run and run.state == 'running' then
  if not run.stop then put_run(run, {stop = asked.reason}) end
elseif run and (not ENDED[run.state] or may_start_late(run)) then
  end_run(run, {state = 'cancelled', reason = asked.reason})
end
return answered(shown(run))
