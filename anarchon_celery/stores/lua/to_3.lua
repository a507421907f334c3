-- to_3: from layout 2 to 3. What is new: `born` and `young` in meta; nodes may have an `app`.
-- Answers: the version that it found; of another one than 2 nothing is changed.
-- Keys: meta
local meta = KEYS[1] .. ':meta'
local found, born = unpack(redis.call('HMGET', meta, 'version', 'created'))
if found == '2' then
  born = born or string.format('%.0f', redis.call('TIME')[1] * 1000)
  redis.call('HSET', meta, 'born', born, 'young', '0', 'version', '3')
end
return found or ''
