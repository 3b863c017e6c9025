-- Fixed window or token bucket while its slot moves: gives back what one quota was charged when another denied, only to
-- a state that still exists. Of a token bucket, what cannot have refilled meanwhile; its ledger begins anew, since it
-- is not told here where in it that was charged: charges from before can then no longer be taken back.
--
-- KEYS  the state of the quota; pair_head.lua says how it is kept
-- ARGV  first instant of the window that was charged, or of the charge to a bucket, us; cost; fractions that a unit
--       costs (0: a fixed window); fractions repaid in a us
--       [now]           instead of TIME, us; tests only
--
-- Reply 1 if something was given back, else 0

local charged, cost, price, repaid = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local state = redis.call('GET', KEYS[1])
if not state then
  return 0
end
local a, b = struct.unpack('>I8I8', state)
local back = a == charged and cost or 0
if price > 0 then
  local now
  if ARGV[5] then
    now = tonumber(ARGV[5])
  else
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  back = cost * price - repaid * math.max(0, now - charged)
end
if back <= 0 then
  return 0
end
local tail = string.sub(state, 17)
if price > 0 and tail ~= '' then
  local mark, _, last = struct.unpack('>I8I8I8', tail)
  tail = struct.pack('>I8I8I8I8I8I8I8', mark, last + 1, last + 1, 0, 0, 0, 0)
end
redis.call('SET', KEYS[1], struct.pack('>I8I8', a, math.max(0, b - back)) .. tail, 'KEEPTTL')
return 1
