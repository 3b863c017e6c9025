-- Decides a list of costs for one key against all quotas of its policy, and charges the allowed
-- ones to the current tick. It follows `counter_head.lua`.
--
-- Reply {TIME, counts}         The former counts of the ticks, by commas; an empty one is 0.
--       {TIME, counts, mark}   Reservations may be undone until `mark`, us.

if spoilt then
  return {now, ''}
end

local room, charged = math.huge, 0
for _ = 1, quotas do
  local behind, limit
  behind, limit, at = read_at('<dd', numbers, at)
  room = math.min(room, limit - (sum - sums[before - behind]))
end

-- Decides the costs in order. Each is charged to all quotas or to none.
while at <= #numbers do
  local cost, times
  cost, times, at = read_at('<dd', numbers, at)
  if cost > 0 then
    local fit = math.min(times, math.floor((room - charged) / cost))
    charged = charged + math.max(fit, 0) * cost
  end
end

if charged > 0 then
  charge_tick(charged)
end
return reply
