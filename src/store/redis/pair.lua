-- Decide the costs in order; each is charged to all quotas or to none.
local charged, lives = 0, {}
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
    if tail[q] and not goes_on(q, first[q], second[q], tail[q]) then
      tail[q] = nil
    end
    first[q], second[q], lives[q] = charge(q, first[q], second[q], charged)
    -- One second more than the state matters spares the edge.
    local ttl = string.format('%.0f', math.ceil(lives[q] / 1000) + 1000)
    redis.call('SET', KEYS[q], struct.pack('>I8I8', first[q], second[q]) .. (tail[q] or ''), 'PX', ttl)
  end
end
