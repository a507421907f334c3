-- runs: a page of an index of runs.
-- Asked: index (runs, deadlines, buffered, or one of a job), state?, limit, look: how many to look at,
--        after? {score, job, slot, kind}; or `run` {job, slot, kind} alone
-- Answers: {runs, after?: where the next page begins, if there may be one}
-- Keys: the index, run:<kind>:<slot>:<job>
if asked.run then return answered({runs = {shown(find_run(asked.run))}}) end

local name = key(asked.index)
local place = place_after(name, asked.after)
local found = redis.call('ZRANGE', name, place, place + asked.look - 1, 'WITHSCORES')
local runs, last = {}, nil
for at = 1, #found, 2 do
  last = named(found[at])
  last.score = tonumber(found[at + 1])
  local run = find_run(last)
  if run and (not asked.state or run.state == asked.state) then runs[#runs + 1] = shown(run) end
  if #runs == asked.limit then break end
end
return answered({runs = runs, after = #found == 2 * asked.look and last or nil})
