-- What every script begins with.
--
-- KEYS[1]  the prefix. Its hash tag puts all keys of a store on one node of a cluster; the scripts
--          derive all other keys from it, and redis.py describes them.
-- ARGV[1]  JSON: what the verb asks; `now`, where a test sets the time; `identity`, a candidate;
--          `caller` {identity?, at?, node?, noted?}: what the caller knows of the store (see youth.py);
--          `refuses`, if one that knows another store has to register first;
--          `looks`, if nothing is to change; `acknowledged`, if replicas are waited for.
-- Answers  JSON: `now`, `identity`, `young_since` if it is young or was, `noted` if the caller's node was,
--          `answer`, and `unreadable`: keys whose records were passed over; or `refused` in place of an
--          answer; or `version` alone, where the store is of another version than this script.
--
-- A record is a table: whole numbers as numbers, all else as text, and no field for None. A field
-- that the hash lacks has the default of protocol.Run. Numbers are written by `text`, because tostring and
-- cjson stop at 14 digits, and a fence has 16. Texts are never compared by `<`, which follows the
-- server's locale.
-- What the protocol's module says is set before it, by redis.py: VERSION, LATEST, MAX_DISPATCHES,
-- LONGEST_START_TIMEOUT, ORPHANED_AFTER, GONE_AFTER, REMEMBERED_HASHES, COMEBACK_AFTER, HISTORY_AT_LEAST,
-- FOLD_AFTER, ASKED_AGAIN_WITHIN, BUFFERED, LEAPT, MANUAL, BACKFILL, OVERTAKEN, EARLIER_TRY, YOUNG, PUT_BACK.
local prefix, asked = KEYS[1], cjson.decode(ARGV[1])
local unreadable = {}

-- Every command goes through here: on a key that somebody made something else it is tried again once that is
-- mended. What cannot be mended is named.
local server, mend = redis, nil
local redis = {pcall = server.pcall}

function redis.call(...)
  local answer = server.pcall(...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  local _, name = ...
  if not string.find(answer.err, 'WRONGTYPE', 1, true) then return server.call(...) end
  if not (mend and mend(name)) then error('-WRONGTYPE ' .. name .. ' holds something else') end
  return server.call(...)
end

local function key(name, job) return prefix .. ':' .. name .. (job and ':' .. job or '') end

-- In one call the same few numbers are written again and again.
local texts = {}
local function text(number)
  local known = texts[number]
  if not known then
    known = string.format('%.0f', number)
    texts[number] = known
  end
  return known
end

-- All our numbers are so; what is not was written by somebody else.
local function whole(text)
  local number = tonumber(text)
  return number and number % 1 == 0 and number >= 0 and number <= 2 ^ 53 and number or nil
end

local function is_instant(number)
  return type(number) == 'number' and whole(number) ~= nil and number <= LATEST
end

local function names(...)
  local set = {}
  for _, name in ipairs({...}) do set[name] = true end
  return set
end

local ACTIVE = names('claimed', 'queued', 'running', 'released')
local ENDED = names('succeeded', 'failed', 'published', 'skipped', 'missed', 'cancelled', 'abandoned')
local NUMBERS = names(
  'slot', 'dispatch', 'unstarted', 'attempt', 'crashes', 'fence', 'deadline', 'span', 'lease', 'not_before',
  'retries', 'claimed_at', 'queued_at', 'started_at', 'finished_at', 'until', 'count')
local INSTANTS = names(
  'slot', 'deadline', 'not_before', 'claimed_at', 'queued_at', 'started_at', 'finished_at', 'until', 'first_seen',
  'seen', 'floor', 'paused_at')
local KINDS = names('scheduled', MANUAL, BACKFILL, LEAPT)
local TRIGGERS = names('scheduled', 'catch-up', 'takeover', MANUAL, BACKFILL)
local JOB_NUMBERS = {'first_seen', 'seen', 'floor', 'fence', 'paused_at'}
local DEFAULTS = {trigger = 'scheduled', dispatch = 1, unstarted = 0, attempt = 0, crashes = 0, fence = 0}

-- The time, and which store this is -------------------------------------------------------------

local now = asked.now
if not now then
  local read = redis.call('TIME')
  now = read[1] * 1000 + math.floor(read[2] / 1000)
end

local META, NODES, JOBS = key('meta'), key('nodes'), key('jobs')
local RUNS, DEADLINES, WAITING, FINISHED = key('runs'), key('deadlines'), key('buffered'), key('finished')

local version, identity, created, born, follows = unpack(
  redis.call('HMGET', META, 'version', 'identity', 'created', 'born', 'young'))
if version and whole(version) ~= VERSION then return cjson.encode({version = version}) end
created, born, follows = created and whole(created), born and whole(born), follows and follows ~= '0'
if not (version and identity and created and born) then
  identity, created, born = identity or asked.identity, created or now, born or now
  redis.call(
    'HSET', META, 'version', VERSION, 'identity', identity, 'created', text(created), 'born', text(born), 'young', '0')
end

-- It turned out that the store follows one that somebody knew.
local function follow()
  if not follows then redis.call('HSET', META, 'young', '1') end
  follows = true
end

-- It turned out that the store lost writes: it gets another identity, and is young.
local function lose_writes()
  identity, born, follows = asked.identity, now, true
  redis.call('HSET', META, 'identity', identity, 'born', text(born), 'young', '1')
end

-- For how long runs with this lease are still to be put back, or nil. Where the store's clock went back
-- meanwhile it is one lease; by more than a lease, and nothing is known.
local function young_for(lease)
  if not follows or now < born - lease or now >= born + lease then return nil end
  return math.min(lease, born + lease - now)
end

-- Whether nothing of before is here: then what nodes remember is all that is known.
local function is_wiped() return follows and born == created end

local function node_of(id)
  local found = redis.pcall('HGET', NODES, id)
  local read, node = pcall(cjson.decode, found or '')
  return read and type(node) == 'table' and node or nil, found
end

-- Whether a note that was answered is lost. A clock that went back tells nothing, nor a day's silence.
local function has_forgotten(id, answered)
  if not id or not answered or answered > now or answered <= now - GONE_AFTER then return false end
  local node, found = node_of(id)
  if not node then return not found end
  return type(node.seen) == 'number' and node.seen < answered
end

local caller = asked.caller or {}
if caller.identity and caller.identity ~= identity then
  if caller.at and caller.at > born then lose_writes() else follow() end
elseif caller.identity and has_forgotten(caller.node, caller.noted) then
  lose_writes()
end

-- Whether this call gave runs back, for beats to dispatch: they are told, if they listen. That this user may
-- not tell them is no error: they poll.
local noted, gave_back = nil, false
local function answered(value)
  if gave_back then redis.pcall('PUBLISH', key('wake'), '') end
  return cjson.encode({
    now = now, identity = identity, young_since = follows and born or nil, noted = noted, answer = value,
    unreadable = unreadable,
  })
end

if asked.refuses and caller.identity and caller.identity ~= identity then
  return cjson.encode({now = now, identity = identity, young_since = born, refused = true})
end

-- Note that this node lives.
local function see(node)
  local known = {}
  for field, value in pairs(node) do known[field] = field ~= 'id' and value or nil end
  known.seen = now
  redis.call('HSET', NODES, node.id, cjson.encode(known))
  noted = true
end


-- Records ---------------------------------------------------------------------------------------

-- Write the changed fields of a record; a field that is false goes.
local function write(name, changes)
  local set, gone = {}, {}
  for field, value in pairs(changes) do
    if value == false then
      gone[#gone + 1] = field
    else
      set[#set + 1] = field
      set[#set + 1] = type(value) == 'number' and text(value) or value
    end
  end
  if #set > 0 then redis.call('HSET', name, unpack(set)) end
  if #gone > 0 then redis.call('HDEL', name, unpack(gone)) end
end

local function pass_over(name)
  unreadable[#unreadable + 1] = name
  return nil, true
end

-- Return a number of a record; nil if it cannot be one.
local function number_in(field, text)
  local number = whole(text)
  if INSTANTS[field] and not is_instant(number) then return nil end
  return number
end

-- Return a job: nil if there is none, or (nil, true) if somebody made it unreadable.
local function find_job(job)
  local name = key('job', job)
  local found = redis.pcall(
    'HMGET', name, 'first_seen', 'seen', 'floor', 'fence', 'paused_at', 'supervised', 'hashes', 'paused',
    'paused_by')
  if found.err then return pass_over(name) end
  if not found[1] then return nil end
  local record = {
    name = job, fence = 0, supervised = found[6] == '1', hashes = found[7] or nil, paused = found[8] or nil,
    paused_by = found[9] or nil,
  }
  for place, field in ipairs(JOB_NUMBERS) do
    if found[place] then
      record[field] = number_in(field, found[place])
      if not record[field] then return pass_over(name) end
    end
  end
  record.seen = record.seen or record.first_seen
  return record
end

local function put_job(job, changes)
  for field, value in pairs(changes) do job[field] = value or nil end
  write(key('job', job.name), changes)
end

-- Write the last fence of a job that a worker started; a job that is not known comes to be.
local function put_fence(name, job, fence)
  if job then return put_job(job, {fence = fence, supervised = '1'}) end
  redis.call('SADD', JOBS, name)
  put_job({name = name}, {
    first_seen = now, seen = now, fence = fence, supervised = '1', floor = false, hashes = false,
  })
end

-- The schedules of a job --------------------------------------------------------------------------
-- The newest last, each as {hash, since, floor?}.

local function schedule_of(known)
  if type(known) ~= 'table' or type(known[1]) ~= 'string' or not is_instant(known[2]) then return nil end
  if known[3] ~= cjson.null and not is_instant(known[3]) or not is_instant(known[4]) then return nil end
  return {hash = known[1], since = known[2], floor = known[3] ~= cjson.null and known[3] or nil, seen = known[4]}
end

-- Return the schedules of a job; none if one of them cannot be read.
local function schedules_of(job)
  local read, hashes = pcall(cjson.decode, job.hashes or '[]')
  local schedules = {}
  for place, known in ipairs(read and type(hashes) == 'table' and hashes or {}) do
    schedules[place] = schedule_of(known)
    if not schedules[place] then return {} end
  end
  return schedules
end

-- Return the schedules as they are written and travel.
local function as_hashes(schedules)
  local hashes = {}
  for place, known in ipairs(schedules) do
    hashes[place] = {known.hash, known.since, known.floor or cjson.null, known.seen}
  end
  return hashes
end

local function schedule_by(schedules, hash)
  for place, known in ipairs(schedules) do
    if known.hash == hash then return known, place end
  end
end

-- Return the higher one of two floors; nil lies below all.
local function higher(floor, other) return floor and other and math.max(floor, other) or floor or other end

-- Raise the floor of a job and of one of its schedules to this slot; of all where none is given.
local function raise(job, schedules, slot, one)
  job.floor = higher(job.floor, slot)
  for _, known in ipairs(schedules) do
    if not one or known == one then known.floor = higher(known.floor, slot) end
  end
end

-- Whether what is decided for a schedule, or a job, is less than a node was told: what is beyond is lost.
local function is_below(one, told) return told and told <= now and (not one.floor or one.floor < told) end

-- Write what is new of the floors and schedules of a job: it was read with this floor.
local function put_schedules(job, schedules, floor)
  local changes, hashes = {}, #schedules > 0 and cjson.encode(as_hashes(schedules)) or nil
  if job.floor ~= floor then changes.floor = job.floor end
  if job.hashes ~= hashes then changes.hashes = hashes end
  put_job(job, changes)
end

-- `run` may be anything that names one: {job, slot, kind}.
local function name_of(run)
  return prefix .. ':run:' .. run.kind .. ':' .. text(run.slot) .. ':' .. run.job
end

-- What stands for the run in the indexes: its order in bytes is that of the keys.
local function member_of(run)
  return run.job .. '\0' .. string.format('%015.0f', run.slot) .. '\0' .. run.kind
end

local function named(member)
  local job, slot, kind = string.match(member, '^(.*)%z(%d+)%z([^%z]*)$')
  return {job = job or '', slot = tonumber(slot or 0), kind = kind or ''}
end

-- Return the run of that name: nil if there is none, or (nil, true) if somebody made it unreadable.
local function find_run(one)
  local name = name_of(one)
  local fields = redis.pcall('HGETALL', name)
  if fields.err then return pass_over(name) end
  if #fields == 0 then return nil end
  local run = {}
  for at = 1, #fields, 2 do
    local field, value = fields[at], fields[at + 1]
    if NUMBERS[field] then
      value = number_in(field, value)
      if not value then return pass_over(name) end
    end
    run[field] = value
  end
  local is_it = run.job == one.job and run.slot == one.slot and run.kind == one.kind
  local is_whole = ENDED[run.state] or run.state == BUFFERED or ACTIVE[run.state] and run.deadline
  for field, value in pairs(DEFAULTS) do
    if run[field] == nil then run[field] = value end
  end
  if not (is_it and is_whole and KINDS[run.kind] and TRIGGERS[run.trigger]) then return pass_over(name) end
  return run
end

-- The indexes of a run, by what its state is: one of all jobs, and `<what>:<job>`.
local INDEXES = {active = DEADLINES, buffered = WAITING, ended = FINISHED}

local function what_is(state)
  if ACTIVE[state] then return 'active' end
  return state == BUFFERED and 'buffered' or ENDED[state] and 'ended' or nil
end

-- Move the run between the indexes; `was` is the state they know, nil if they know nothing of it.
local function index(run, member, was)
  local what, before = what_is(run.state), what_is(was)
  if what ~= before then
    if before then
      redis.call('ZREM', INDEXES[before], member)
      redis.call('ZREM', key(before, run.job), member)
    end
    redis.call('ZADD', key(what, run.job), text(0 - run.slot), member)
  end
  local scores = {active = run.deadline, buffered = 0 - run.slot, ended = run.finished_at or 0}
  redis.call('ZADD', INDEXES[what], text(scores[what]), member)
end

-- The record of a run was removed, but not by a script: the indexes forget it too. What is no run of that job
-- was put into its indexes by somebody, and leaves those alone.
local function unlist(member, job)
  local own = named(member).job
  job = job or own
  local indexes = {key('active', job), key('buffered', job)}
  if job == own then indexes = {DEADLINES, WAITING, RUNS, unpack(indexes)} end
  for _, name in ipairs(indexes) do redis.call('ZREM', name, member) end
end

-- Put into one index all runs that another one lists.
local function copy(name, from, what, only)
  local listed = server.pcall('ZRANGE', from, 0, -1)
  for _, member in ipairs(listed.err and {} or listed) do
    local one = named(member)
    local run = (not only or one.job == only) and find_run(one)
    if run and what_is(run.state) == what then
      local score = only and 0 - run.slot or ({active = run.deadline, ended = run.finished_at})[what]
      server.call('ZADD', name, text(score or 0 - run.slot), member)
    end
  end
end

-- Set an index anew from the others, in place of what somebody put there; nodes come by themselves.
function mend(name)
  local what, job = string.match(string.sub(name, #prefix + 2), '^(%l+):(.*)$')
  local is_index = INDEXES[what] or name == DEADLINES or name == WAITING or name == FINISHED or name == RUNS
  if not (is_index or name == NODES) then return false end
  pass_over(name)
  server.call('DEL', name)
  if INDEXES[what] then
    copy(name, INDEXES[what], what, job)
  elseif is_index then
    for _, each in ipairs(redis.call('SMEMBERS', JOBS)) do
      for kind, index in pairs(INDEXES) do
        if name == index then copy(name, key(kind, each), kind) end
        if name == RUNS then copy(name, key(kind, each), kind, each) end
      end
    end
  end
  return true
end

-- The runs that this call changed, by the names of their keys.
local changed = {}

-- Change a run, or record a new one with these changes; return it.
local function put_run(run, changes, is_new)
  local was = not is_new and run.state or nil
  for field, value in pairs(changes) do run[field] = value or nil end
  local member, name = member_of(run), name_of(run)
  changed[name] = run
  gave_back = gave_back or changes.state == 'released' or is_new and run.state == 'released'
  write(name, is_new and run or changes)
  if is_new then redis.call('ZADD', RUNS, text(0 - run.slot), member) end
  index(run, member, was)
  return run
end

-- Note that the node lives whose call this is, if it changed something: what it is answered must not get lost.
local function see_caller()
  local node = next(changed) and caller.node and node_of(caller.node)
  if node then
    node.seen, noted = now, true
    redis.call('HSET', NODES, caller.node, cjson.encode(node))
  end
end

-- Add to the changes of a run that its deadline is `span` milliseconds ahead.
local function lasting(span, changes)
  changes.deadline, changes.span = now + span, span
  return changes
end

-- Whose turn it is ------------------------------------------------------------------------------

-- The names of a job's runs in one of its indexes, oldest first.
local function oldest_first(what, job) return redis.call('ZREVRANGE', key(what, job), 0, -1) end

-- Whether a job has an active run; what somebody put there that is none, or took away, does not count.
local function any_active(job)
  local name = key('active', job)
  local member = redis.call('ZRANGE', name, 0, 0)[1]
  while member do
    local one = named(member)
    if one.job == job and redis.call('EXISTS', name_of(one)) == 1 then return true end
    unlist(member, job)
    member = redis.call('ZRANGE', name, 0, 0)[1]
  end
  return false
end

-- Whether the run may not go on because its job is paused: only scheduled ones care.
local function is_held_back(run)
  if run.kind ~= 'scheduled' then return false end
  local job = find_job(run.job)
  return job ~= nil and job.paused ~= nil
end

local function others_active(run)
  local name = key('active', run.job)
  local mine = redis.call('ZSCORE', name, member_of(run)) and 1 or 0
  return redis.call('ZCARD', name) > mine
end

-- Whether there is another run of its job of which this is so, by its kind and state.
local function any_other(run, what, is_so)
  local own = member_of(run)
  for _, member in ipairs(oldest_first(what, run.job)) do
    local one = named(member)
    local state = member ~= own and one.job == run.job and server.pcall('HGET', name_of(one), 'state')
    if what_is(state) == what and is_so(one.kind, state) then return true end
  end
  return false
end

local function is_asked_for(kind) return kind ~= 'scheduled' end

-- Whether others of its job are in the way of a run that comes, where overlap forbids them. For one that
-- somebody asked for only what runs counts, and other such runs, those that wait too.
local function has_to_wait(run)
  if run.kind == 'scheduled' then return others_active(run) end
  local function is_in_the_way(kind, state) return is_asked_for(kind) or state == 'running' end
  return any_other(run, 'active', is_in_the_way) or any_other(run, 'buffered', is_asked_for)
end

-- Let the oldest run of a job that waits go on, if no other is active; a retry at its time.
-- Where overlap allows it, `side_by_side`, all that wait go on: after a pause there may be several.
local function promote(job, side_by_side)
  local waiting, place = key('buffered', job), 0
  local member = redis.call('ZREVRANGE', waiting, place, place)[1]
  while member and (side_by_side or redis.call('ZCARD', key('active', job)) == 0) do
    local run, is_unreadable = find_run(named(member))
    if is_unreadable or run and run.state == BUFFERED and is_held_back(run) then
      place = place + 1
    elseif not run or run.job ~= job then
      unlist(member, job)
    elseif run.state == BUFFERED then
      put_run(run, lasting(math.max(0, (run.not_before or now) - now), {state = 'released'}))
    else
      index(run, member, BUFFERED)
    end
    member = redis.call('ZREVRANGE', waiting, place, place)[1]
  end
end

-- End a run in whose place another one is put in the same step: none that waits goes on.
local function end_for_another(run, changes, is_new)
  changes.deadline, changes.span, changes.not_before = false, false, false
  changes.finished_at, changes.reason = now, changes.reason or false
  return put_run(run, changes, is_new)
end

-- End a run, and let the next one go on: every end goes through here.
local function end_run(run, changes, is_new)
  end_for_another(run, changes, is_new)
  promote(run.job)
  return run
end

-- Let a run wait; it has no deadline until it is promoted.
local function buffer(run, changes, is_new)
  changes.state, changes.deadline, changes.span = BUFFERED, false, false
  changes.finished_at, changes.reason = false, false
  put_run(run, changes, is_new)
  promote(run.job)
  return run
end

-- Let the runs of a paused job wait, but for those that a worker has.
local function hold_back(job)
  for _, member in ipairs(oldest_first('active', job)) do
    local run = find_run(named(member))
    if run and ACTIVE[run.state] and run.state ~= 'running' and is_held_back(run) then buffer(run, {}) end
  end
end

-- Whether a message that comes late may still start a run, though it is over.
local function may_start_late(run)
  return run.state == 'published' or run.state == 'abandoned' and run.unstarted > 0
end

-- Whether the record of a run may go: one that somebody brought back to life may not.
local function is_over(run)
  local state = server.pcall('HGET', name_of(run), 'state')
  return not (ACTIVE[state] or state == BUFFERED)
end

local function drop(run, member)
  redis.call('DEL', name_of(run))
  redis.call('ZREM', RUNS, member)
  redis.call('ZREM', FINISHED, member)
  redis.call('ZREM', key('ended', run.job), member)
end

-- Return the run as it travels.
local function shown(run)
  if run and run.fence then run.fence = text(run.fence) end
  return run
end

local function held(one, token)
  local run = find_run(one)
  return run and run.state == 'running' and run.token == token and run or nil
end

-- Whether this very call was carried out before and only its answer was lost.
local function already(one, token, state, other)
  local run = find_run(one)
  return run ~= nil and (run.state == state or run.state == other) and run.token == token, run
end

-- Paging ----------------------------------------------------------------------------------------

local function precedes(one, other)
  for at = 1, math.min(#one, #other) do
    local here, there = string.byte(one, at), string.byte(other, at)
    if here ~= there then return here < there end
  end
  return #one < #other
end

-- Return the place in an index of the first that comes after `last`: a score and a run's name.
-- Return the place of an entry as it travels: somebody's score has digits, and somebody's member bytes, that JSON
-- has not. Who went on from anything else might meet the same entry for ever.
local function place_of(member, score)
  return {score = score, member = string.gsub(member, '.', function(byte)
    return string.format('%02x', string.byte(byte))
  end)}
end

-- Return how many entries of an index lie up to a place: one of place_of, or the score and name of a run.
local function place_after(name, last)
  if not last then return 0 end
  local member, score = last.member, last.score
  if member then
    member = string.gsub(member, '%x%x', function(byte) return string.char(tonumber(byte, 16)) end)
  else
    member, score = member_of(last), text(score)
  end
  local low = redis.call('ZCOUNT', name, '-inf', '(' .. score)
  local high = redis.call('ZCOUNT', name, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if precedes(member, redis.call('ZRANGE', name, middle, middle)[1]) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- Whether the server takes writes -----------------------------------------------------------------

-- A replica's answers may be old, so a mere look tries to write too, in vain: a replica refuses that. What
-- changes something tries it with a command that a full server refuses: after any other write it would go on
-- without memory. Where replicas are waited for it does write, so that all writes before are waited for.
if asked.looks then
  redis.call('HDEL', META, '')
elseif asked.acknowledged then
  redis.call('HSET', META, 'asked', text(now))
else
  redis.call('ZADD', RUNS, 'XX', 0, '')
end
