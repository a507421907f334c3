-- successes: of each job the newest slot that was run well, and when that ended.
-- Asked: states: those that count; least: how many ended runs of each job to look at; more: how many beyond
--        these, of all jobs together that have none among them
-- Answers: [[job, slot, finished_at]]; where there are more runs than were looked at, the oldest of these
--          stands for the job, with its slot for both
-- Keys: jobs, ended:<job>, run:<kind>:<slot>:<job>
local counts, found, left = names(unpack(asked.states)), {}, {}

-- Look at some of a job's ended runs; true if there is no more to be found.
local function look(job, from, many)
  local members = redis.call('ZRANGE', key('ended', job), from, from + many)
  for place = 1, math.min(#members, many) do
    local one = named(members[place])
    local run = redis.pcall('HMGET', name_of(one), 'state', 'finished_at')
    local finished_at = not run.err and counts[run[1]] and run[2] and number_in('finished_at', run[2])
    if finished_at then
      found[#found + 1] = {job, text(one.slot), text(finished_at)}
      return true
    end
  end
  return #members <= many, members[many]
end

for _, job in ipairs(redis.call('SMEMBERS', JOBS)) do
  if not look(job, 0, asked.least) then left[#left + 1] = job end
end
local share = math.max(1, math.floor(asked.more / math.max(1, #left)))
for _, job in ipairs(left) do
  local is_all, last = look(job, asked.least, share)
  local slot = not is_all and last and named(last).slot
  if is_instant(slot) then found[#found + 1] = {job, text(slot), text(slot)} end
end
return answered(found)
