local read = redis.call('MGET', unpack(KEYS))
local reply, first, second, room = {now}, {}, {}, {}
for q = 1, quotas do
  local a, b = 0, 0
  if read[q] then
    a, b = struct.unpack('>I8I8', read[q])
  end
  first[q], second[q], room[q] = a, b, left(q, a, b)
  reply[2 * q], reply[2 * q + 1] = a, b
end

-- Decide the costs in order; each is charged to all quotas or to none.
local charged = 0
for r = runs, #ARGV - 1, 2 do
  local cost, fit = tonumber(ARGV[r]), tonumber(ARGV[r + 1])
  if cost > 0 then
    for q = 1, quotas do
      fit = math.min(fit, math.floor((room[q] - charged) / cost))
    end
    charged = charged + math.max(fit, 0) * cost
  end
end

if charged > 0 then
  for q = 1, quotas do
    local a, b, life = charge(q, first[q], second[q], charged)
    -- One second more than the state matters spares the edge.
    local ttl = string.format('%.0f', math.ceil(life / 1000) + 1000)
    redis.call('SET', KEYS[q], struct.pack('>I8I8', a, b), 'PX', ttl)
  end
end
return reply
