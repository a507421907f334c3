-- nodes: all nodes the store remembers.
-- Answers: [{id, name, kind, seen, app?, version?, celery?, python?, clock_offset?, schedule?}]
-- Keys: nodes
local nodes, found = {}, redis.call('HGETALL', NODES)

-- Whether it can be a node: of what is not told nothing is asked.
local function is_node(node)
  return type(node) == 'table' and type(node.name) == 'string' and is_instant(node.seen)
    and (node.kind == 'beat' or node.kind == 'worker')
end

local function offset_of(node)
  local offset = node.clock_offset
  return type(offset) == 'number' and is_instant(math.abs(offset)) and offset or nil
end

for at = 1, #found, 2 do
  local read, node = pcall(cjson.decode, found[at + 1])
  if read and is_node(node) then
    local known = {id = found[at], name = node.name, kind = node.kind, seen = node.seen}
    for _, field in ipairs({'app', 'version', 'celery', 'python', 'schedule'}) do
      known[field] = type(node[field]) == 'string' and node[field] or nil
    end
    known.clock_offset = offset_of(node)
    nodes[#nodes + 1] = known
  else
    pass_over(NODES .. ' ' .. found[at])
  end
end
return answered(nodes)
