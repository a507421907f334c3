-- version: of which version the layout of the store is, as it is written.
-- Answers: JSON: {version?}
-- Keys: meta
return cjson.encode({version = redis.call('HGET', KEYS[1] .. ':meta', 'version') or nil})
