-- to_4: from layout 3 to 4. What is new: runs that somebody asked for have `arguments`, `asked_by` and `request`;
-- nodes may have `version`, `celery`, `python`, `clock_offset` and `schedule`. Nothing that is there changes.
-- Answers: the version that it found; of another one than 3 nothing is changed.
-- Keys: meta
local meta = KEYS[1] .. ':meta'
local found = redis.call('HGET', meta, 'version')
if found == '3' then redis.call('HSET', meta, 'version', '4') end
return found or ''
