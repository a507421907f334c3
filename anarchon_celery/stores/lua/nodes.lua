-- nodes: all nodes the store remembers.
-- Answers: [{id, name, kind, seen}]
-- Keys: nodes
local nodes, found = {}, redis.call('HGETALL', NODES)
for at = 1, #found, 2 do
  local read, node = pcall(cjson.decode, found[at + 1])
  if read and type(node) == 'table' and type(node.name) == 'string' and type(node.seen) == 'number' then
    nodes[#nodes + 1] = {id = found[at], name = node.name, kind = tostring(node.kind), seen = node.seen}
  else
    pass_over(NODES .. ' ' .. found[at])
  end
end
return answered(nodes)
