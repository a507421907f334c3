-- version: of which version the layout of the store is, as it is written; '' where nothing is there yet.
-- Keys: meta
return redis.call('HGET', KEYS[1] .. ':meta', 'version') or ''
