-- runs: a page of an index of runs.
-- Asked: index (runs, deadlines, buffered, or one of a job), job?: only its runs, state?, limit, look: how many to look at,
--        after?: a place; or `run` {job, slot, kind} alone
-- Answers: {runs, after?: where the next page begins, if there may be one}
-- Keys: the index, run:<kind>:<slot>:<job>
if asked.run then return answered({runs = {shown(find_run(asked.run))}}) end

-- Whether an entry is there because of this run, and the run is asked for.
local function is_meant(run, member)
  return member_of(run) == member and (not asked.job or run.job == asked.job)
    and (not asked.state or run.state == asked.state)
end

local name = key(asked.index)
local place = place_after(name, asked.after)
local found = redis.call('ZRANGE', name, place, place + asked.look - 1, 'WITHSCORES')
local runs, last = {}, nil
for at = 1, #found, 2 do
  last = place_of(found[at], found[at + 1])
  local run = find_run(named(found[at]))
  if run and is_meant(run, found[at]) then runs[#runs + 1] = shown(run) end
  if #runs == asked.limit then break end
end
return answered({runs = runs, after = #found == 2 * asked.look and last or nil})
