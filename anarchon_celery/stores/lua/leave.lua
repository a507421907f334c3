-- leave: forget a node that stops.
-- Asked: id
-- Keys: nodes
redis.call('HDEL', NODES, asked.id)
return answered()
