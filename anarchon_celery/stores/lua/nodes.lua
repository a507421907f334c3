-- nodes: all nodes the store remembers.
-- Answers: [{id, name, kind, seen, app?}]
-- Keys: nodes
local nodes, found = {}, redis.call('HGETALL', NODES)
for at = 1, #found, 2 do
  local read, node = pcall(cjson.decode, found[at + 1])
  if read and type(node) == 'table' and type(node.name) == 'string' and type(node.seen) == 'number' then
    local app = type(node.app) == 'string' and node.app or nil
    nodes[#nodes + 1] = {
      id = found[at], name = node.name, kind = tostring(node.kind), seen = node.seen, app = app,
    }
  else
    pass_over(NODES .. ' ' .. found[at])
  end
end
return answered(nodes)
